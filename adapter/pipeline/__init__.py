"""The fleet's offsets in Spark. Needs the extra `spark`; the sidecar never imports any of this."""
