{{- define "headroom.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headroom.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headroom.labels" -}}
{{ include "headroom.selector" . }}
app.kubernetes.io/version: {{ default .Chart.AppVersion .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "headroom.image" -}}
{{- with .Values.global.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
{{- end }}

{{- define "headroom.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "headroom.fullname" .) .Values.serviceAccount.name }}
{{- else }}{{ default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "headroom.policy" -}}
{{ toYaml .Values.policy }}
{{- end }}

{{/* The container of a role. Takes: root, name, args, resources; env and secretFiles of its own. */}}
{{- define "headroom.container" -}}
{{- $root := .root -}}
name: {{ .name }}
image: {{ include "headroom.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
args: {{ toJson .args }}
env:
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  {{- $service := include "headroom.fullname" $root }}
  {{- $namespace := $root.Release.Namespace }}
  - name: HEADROOM_ALLOWED_HOSTS
    value: {{ concat $root.Values.hosts (list $service (printf "%s.%s" $service $namespace) (printf "%s.%s.svc" $service $namespace) "localhost" "$(POD_IP)") | join "," | quote }}
  {{- if and $root.Values.policy (not .isJob) }}
  - name: HEADROOM_POLICY_FILE
    value: /etc/headroom/policy.yaml
  {{- end }}
  {{- $files := dict }}
  {{- range $name, $key := merge (default dict .secretFiles) $root.Values.secretFiles }}
  {{- if $key }}{{ $_ := set $files $name (printf "/run/secrets/headroom/%s" $key) }}{{ end }}
  {{- end }}
  {{- $given := merge (default dict .env) $root.Values.settings $files }}
  {{- range $name, $value := $given }}
  - name: {{ $name }}
    value: {{ $value | toString | quote }}
  {{- end }}
resources: {{ toYaml .resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: secret, mountPath: /run/secrets/headroom, readOnly: true}
  - {name: state, mountPath: /var/lib/headroom}
  - {name: tmp, mountPath: /tmp}
  {{- if and $root.Values.policy (not .isJob) }}
  - {name: policy, mountPath: /etc/headroom, readOnly: true}
  {{- end }}
{{- end }}

{{/* What the pods of all roles have in common. Takes: root, role, and isJob. */}}
{{- define "headroom.pod" -}}
{{- $root := .root -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with $root.Values.global.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
volumes:
  - name: secret
    secret: {secretName: {{ $root.Values.existingSecret }}, defaultMode: 0440}
  - name: state
    emptyDir: {sizeLimit: 256Mi}
  - name: tmp
    emptyDir: {sizeLimit: 256Mi}
  {{- if and $root.Values.policy (not .isJob) }}
  - name: policy
    configMap: {name: {{ include "headroom.fullname" $root }}-policy}
  {{- end }}
{{- end }}

{{/* The Deployment of a role. Takes: root, role, values, container, and surge. */}}
{{- define "headroom.deployment" -}}
{{- $root := .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "headroom.fullname" $root }}-{{ .role }}
  labels: {{ include "headroom.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  {{- if not .isScaled }}
  replicas: {{ .values.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  selector:
    matchLabels: {{ include "headroom.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
  template:
    metadata:
      labels: {{ include "headroom.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .role }}
      annotations:
        kubectl.kubernetes.io/default-container: headroom-{{ .container }}
        {{- if $root.Values.policy }}
        checksum/policy: {{ include "headroom.policy" $root | sha256sum }}
        {{- end }}
        {{- with $root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "headroom.serviceAccount" $root }}
      terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
      {{- include "headroom.pod" . | nindent 6 }}
      topologySpreadConstraints:
        {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
        - topologyKey: {{ $key }}
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{ include "headroom.selector" $root | nindent 14 }}
              app.kubernetes.io/component: {{ $.role }}
        {{- end }}
      containers:
{{- end }}
