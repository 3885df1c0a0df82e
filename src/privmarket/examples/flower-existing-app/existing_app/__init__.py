"""An ordinary Flower app, before (`plain`) and after (`server_app`, `client_app`) its clients sell privacy."""
