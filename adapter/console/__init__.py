"""The console: a web page for the person on call, over the Meta Service and any number of adapters.

- `config`: the settings. `process`: runs it, with `connections`. `app`: routes, middleware, error pages.
- `views`: what a page shows; `pages` renders it with `adapter.look`.
- `sources`: where data come from, beside `adapter.fleet`.
- `access`: what every request passes, and persons. `changes`: what a person may change.
- `parts` and `additions`: what persons and changes add to the reading pages. `background`, `metrics`: beside the pages.
"""
