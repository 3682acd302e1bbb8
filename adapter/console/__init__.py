"""The console: a web page for the person on call, over the Meta Service and any number of adapters.

- `config`: the settings. `process`: runs it. `app`: routes, middleware, error pages; `guard`: what every request passes.
- A page: `views` (as data, JSON and fragments of HTML), `fleet_view`, `groups_view`, `group_view`; `pages` renders them with
  `adapter.look` and `charts`; `problems` says what is wrong; `live` sends what changed.
- Where its data come from: `adapter.fleet`, `meta_instances`, and `admin_calls` to single adapters, by `asking`.
- Persons: `access` with `access_config`, `tokens`, `sessions` and `csrf`.
- Changes: `changes` (pages), `change_wish` (what is asked for), `change_run` (dry run, execution), `change_plans` (what waits).
- `parts` and `additions`: what persons and changes add to the reading pages. `background`, `metrics`: beside the pages.
"""
