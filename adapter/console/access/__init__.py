"""Who gets in: `guard` (what every request passes), `persons` with `config`, `tokens` and `sessions`; `csrf`."""
