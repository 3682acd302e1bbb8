"""How pages look, and how values read: shared by the console and the report of the pipeline.

- `shown`: values as texts. `charts`: lines and bars as paths of SVG. `pages`: templates, the style, ids of rows.
- `templates/macros.html`: a time, a state, a lag status, a chart. `static/look.css`: the style, light and dark.
"""
