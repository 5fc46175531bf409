{{- define "legato.fullname" -}}
{{- if contains "legato" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-legato" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "legato.lease" -}}
{{ include "legato.fullname" . }}-operator
{{- end }}

{{- define "legato.selector" -}}
app.kubernetes.io/name: legato-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "legato.labels" -}}
{{ include "legato.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: legato
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "legato.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "legato.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* The full name of an image. Argument: a list of the context and `operator`, `gateway` or `engine`. */}}
{{- define "legato.image" -}}
{{- $root := index . 0 }}{{- $image := index $root.Values.images (index . 1) }}
{{- with $root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The operator's flags, without operator.extraArgs. */}}
{{- define "legato.operatorFlags" -}}
- --engine-image={{ include "legato.image" (list . "engine") }}
- --gateway-image={{ include "legato.image" (list . "gateway") }}
- --image-pull-policy={{ .Values.images.pullPolicy }}
{{- range .Values.images.pullSecrets }}
- --image-pull-secret={{ . }}
{{- end }}
{{- range .Values.gpuResources }}
- --gpu-resource={{ . }}
{{- end }}
- --upgrade-services={{ .Values.upgrade.services }}
- --upgrade-pause={{ .Values.upgrade.pause }}
{{- with .Values.tracingEndpoint }}
- --tracing-endpoint={{ . }}
{{- end }}
- --token-lifetime={{ .Values.tokenLifetimeDays }}
{{- range .Values.watchNamespaces }}
- --namespace={{ . }}
{{- end }}
{{- range .Values.ignoreNamespaces }}
- --ignore-namespace={{ . }}
{{- end }}
{{- if not .Values.watchNamespaces }}
- --token-role={{ include "legato.fullname" . }}-tokens
{{- end }}
- --service-account={{ include "legato.serviceAccount" . }}
- --lease-name={{ include "legato.lease" . }}
- --http-port={{ .Values.operator.httpPort }}
{{- end }}

{{/* The operator's rights in a namespace with services, except on Secrets (legato.secretRules). No wildcards. */}}
{{- define "legato.rules" -}}
- apiGroups: [serving.legato.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch, patch]
- apiGroups: [serving.legato.dev]
  resources: [workerpools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [serving.legato.dev]
  resources: [inferenceservices/status, workerpools/status]
  verbs: [patch, update]
- apiGroups: [""]
  resources: [pods, services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# To check that a claim in a manifest exists.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
- apiGroups: [apps]
  resources: [deployments, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
# A gateway's Deployment creates its pods through ReplicaSets.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get, list, watch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.rbac.routes }}
# Routes that services request. The operator lists them by the service's label.
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [get, list, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, create, patch, delete]
{{- end }}
# Gateways watch these. The operator can only grant them rights that it has itself.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
# A Lease in each namespace with services, so that only one release works there.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [legato-services]
  verbs: [get, update, delete]
# Only a kubelet's Events give the reason why a volume cannot be mounted.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [get, list, create, patch]
{{- end }}

{{/* The operator reads services' tokens and lists of adapters by name, so it may not list Secrets and ConfigMaps. */}}
{{- define "legato.secretRules" -}}
- apiGroups: [""]
  resources: [secrets, configmaps]
  verbs: [get, create, patch, delete]
{{- end }}

{{- define "legato.subject" -}}
- kind: ServiceAccount
  name: {{ include "legato.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "legato.testNamespace" -}}
{{- .Values.test.namespace | default (first (append .Values.watchNamespaces .Release.Namespace)) }}
{{- end }}

{{/* Alerts that name this release. All others are in files/rules. */}}
{{- define "legato.operatorAlerts" -}}
name: legato-operator
rules:
  - alert: LegatoOperatorGone
    expr: absent(up{namespace={{ .Release.Namespace | quote }}, pod=~{{ printf "%s-.*" (include "legato.fullname" .) | quote }}} == 1)
    for: 5m
    labels: {severity: critical}
    annotations:
      summary: No Legato operator is running. Services keep serving, but nothing is repaired or scaled.
  - alert: LegatoOperatorFails
    expr: sum by (error) (increase(legato_operator_reconcile_errors_total{namespace={{ .Release.Namespace | quote }}}[10m])) > 0
    for: 15m
    labels: {severity: warning}
    annotations:
      summary: The Legato operator fails to reconcile a service. See the service's conditions and the operator's log.
{{- end }}
