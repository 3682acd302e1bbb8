"""The console in a real browser, over real processes. `python -m tests.browser.pictures` writes docs/pictures."""
