{{/*
The adapter in the pod of a broker. In a chart that depends on this one, with `$adapter := index .Subcharts "offset-adapter"`:

    metadata:
      labels: {{ include "offset-adapter.sidecarLabels" $adapter | nindent 8 }}
    spec:
      terminationGracePeriodSeconds: {{ add 30 (include "offset-adapter.sidecarStopSeconds" $adapter) }}  # 30: your broker's
      securityContext: {fsGroup: 10001}
      initContainers: {{ include "offset-adapter.sidecar" $adapter | nindent 8 }}
      volumes: {{ include "offset-adapter.sidecarVolumes" $adapter | nindent 8 }}
  volumeClaimTemplates: {{ include "offset-adapter.sidecarVolumeClaim" $adapter | nindent 4 }}
*/}}

{{/* sidecarLabels: allow calls to the Meta Service (NetworkPolicy) and have the metrics found (ServiceMonitor). */}}
{{- define "offset-adapter.sidecarLabels" -}}
offset-adapter: "true"
{{- end }}

{{/* sidecarStopSeconds: how long it may take from SIGTERM to its end: stop.grace_ms and stop.drain_timeout_ms, and 5 s for the rest. */}}
{{- define "offset-adapter.sidecarStopSeconds" -}}
{{- $stop := .Values.sidecar.settings.stop | default dict -}}
{{ add 5 (div (add 999 (int (dig "grace_ms" 5000 $stop)) (int (dig "drain_timeout_ms" 10000 $stop))) 1000) }}
{{- end }}

{{/*
sidecar: an entry of `initContainers`. restartPolicy Always makes it a sidecar: it starts before the broker, and gets its SIGTERM when the
broker has stopped, within the pod's one terminationGracePeriodSeconds.
*/}}
{{- define "offset-adapter.sidecar" -}}
# restartPolicy Always: a sidecar. It starts before the broker, and stops when the broker has stopped.
- name: offset-adapter
  image: {{ include "offset-adapter.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args: [serve, --config, /etc/offset-adapter/sidecar/adapter.toml]
  ports:
    - {name: oa-metrics, containerPort: {{ include "offset-adapter.port" .Values.sidecar.settings.metrics.listen }}}
  # gRPC is on the pod's loopback, which the kubelet cannot reach. The broker starts when the adapter accepts commits, even without the
  # Meta Service. /livez checks only the event loop, so that a long recovery is not killed.
  startupProbe: {httpGet: {path: /readyz, port: oa-metrics}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 600}
  readinessProbe: {httpGet: {path: /readyz, port: oa-metrics}, periodSeconds: 10, timeoutSeconds: 5}
  livenessProbe: {httpGet: {path: /livez, port: oa-metrics}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
  securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
  resources: {{- toYaml .Values.sidecar.resources | nindent 4 }}
  volumeMounts:
    - {name: offset-adapter-data, mountPath: /var/lib/offset-adapter}
    - {name: offset-adapter-config, mountPath: /etc/offset-adapter/sidecar, readOnly: true}
    - {name: offset-adapter-tmp, mountPath: /tmp} # imports and exports
    {{- with .Values.sidecar.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* sidecarVolumes: entries of `volumes`. */}}
{{- define "offset-adapter.sidecarVolumes" -}}
- name: offset-adapter-config
  configMap: {name: offset-adapter}
- name: offset-adapter-tmp
  emptyDir: {}
{{- with .Values.sidecar.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* sidecarVolumeClaim: an entry of a StatefulSet's `volumeClaimTemplates`. */}}
{{- define "offset-adapter.sidecarVolumeClaim" -}}
- metadata: {name: offset-adapter-data} # outlives the pod: offsets that are not flushed yet are only here
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .Values.sidecar.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .Values.sidecar.storage }}}}
{{- end }}
