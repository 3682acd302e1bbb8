"""The console: a web page for the person on call, over the Meta Service and any number of adapters."""
