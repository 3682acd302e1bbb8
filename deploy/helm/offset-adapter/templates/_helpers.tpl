{{/* image: of the adapter and the Meta Service. */}}
{{- define "offset-adapter.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* toml: a map of settings as TOML, tables last. Takes a dict of `settings` and `path` (the table's name; empty at the top). */}}
{{- define "offset-adapter.toml" -}}
{{- $path := .path -}}
{{- range $name, $value := .settings }}
{{- if not (or (kindIs "map" $value) (and (kindIs "slice" $value) $value (kindIs "map" (first $value)))) }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $name, $value := .settings }}
{{- $full := ternary $name (printf "%s.%s" $path $name) (empty $path) }}
{{- if kindIs "map" $value }}
[{{ $full }}]
{{- include "offset-adapter.toml" (dict "settings" $value "path" $full) }}
{{- else if and (kindIs "slice" $value) $value (kindIs "map" (first $value)) }}
{{- range $value }}
[[{{ $full }}]]
{{- include "offset-adapter.toml" (dict "settings" . "path" $full) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* port: of an address `host:port`. */}}
{{- define "offset-adapter.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{/* members: an etcd cluster's endpoints and machines, for meta.toml, as JSON. Takes a dict of `name` and `nodes`. */}}
{{- define "offset-adapter.members" -}}
{{- $endpoints := list -}}
{{- $nodes := list -}}
{{- range $number := until 3 -}}
{{- $endpoints = append $endpoints (printf "etcd-%s-%d.etcd-%s:2379" $.name $number $.name) -}}
{{- $nodes = append $nodes (printf "%s-%d" $.nodes $number) -}}
{{- end -}}
{{ toJson (dict "endpoints" $endpoints "nodes" $nodes) }}
{{- end }}

{{/* metaToml: meta.toml. Pods of the same number are on one machine, `pair-NUMBER`, where members are beside the metadata's. */}}
{{- define "offset-adapter.metaToml" -}}
{{- $clusters := dict -}}
{{- if .Values.etcd.enabled -}}
{{- $_ := set $clusters "metadata" (include "offset-adapter.members" (dict "name" "metadata" "nodes" "pair") | fromJson) -}}
{{- $offsets := list -}}
{{- range .Values.etcd.offsets -}}
{{- $members := include "offset-adapter.members" (dict "name" .name "nodes" (ternary "pair" .name .besideMetadata)) | fromJson -}}
{{- $offsets = append $offsets (merge (dict "name" .name) $members) -}}
{{- end -}}
{{- $_ := set $clusters "offsets" $offsets -}}
{{- end -}}
{{- include "offset-adapter.toml" (dict "path" "" "settings" (mergeOverwrite (dict "etcd" $clusters) (deepCopy .Values.meta.settings))) | trim }}
{{- end }}

{{/* metaStopSeconds: how long an instance may take from SIGTERM to its end: stop.grace_ms, and 5 s for the rest. */}}
{{- define "offset-adapter.metaStopSeconds" -}}
{{- $stop := .Values.meta.settings.stop | default dict -}}
{{ add 5 (div (add 999 (int (dig "grace_ms" 5000 $stop))) 1000) }}
{{- end }}
