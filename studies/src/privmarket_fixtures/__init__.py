"""What tests and studies both need: markets at a broker, its processes, databases, commands found on pages."""
