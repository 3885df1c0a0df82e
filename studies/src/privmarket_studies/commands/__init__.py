"""Commands that appear in `privmarket` when this distribution is installed: `reproduce`, `bench`, `nash-gap`."""
