"""Earlier releases and this program: their files are read, and their processes exchanged under load. See docs/upgrade.md."""
