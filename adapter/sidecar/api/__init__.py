"""The sidecar's gRPC services: requests are parsed and checked here, and answered.

`offset_service`, `offset_admin` and `store_backup` are the services. `commits` is the one way of a commit request to its
answer, `commit_stream` a stream of them; `commit_requests` and `requests` parse, `replies` makes rows, `status` what Status
shows, and `access` decides who may call OffsetAdmin and StoreBackup.
"""
