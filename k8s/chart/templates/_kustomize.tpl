{{/*
The objects of a folder with a kustomization.yaml, as {"objects": [...]} in JSON: what `kubectl kustomize` builds of it,
with the values of the chart in place. Takes root (the chart's own scope) and folder.

It knows the parts of kustomize that the manifests use, and fails on others rather than leave them out.
*/}}
{{- define "evenshard.build" -}}
  {{- $root := .root -}}
  {{- $file := printf "%s/kustomization.yaml" .folder -}}
  {{- $build := fromYaml (required (printf "there is no %s" $file) ($root.Files.Get $file)) -}}
  {{- $known := list "apiVersion" "kind" "namespace" "bases" "resources" "configMapGenerator" "generatorOptions" "images" -}}
  {{- range $key, $_ := $build -}}
    {{- if not (has $key $known) -}}{{- fail (printf "%s: the chart does not know %s" $file $key) -}}{{- end -}}
  {{- end -}}
  {{- $objects := list -}}
  {{- range $entry := concat (default list $build.bases) (default list $build.resources) -}}
    {{- $path := clean (printf "%s/%s" $.folder $entry) -}}
    {{- if hasSuffix ".yaml" $path -}}
      {{- range $text := regexSplit "(?m)^---\\s*$" (required (printf "there is no %s" $path) ($root.Files.Get $path)) -1 -}}
        {{- $objects = append $objects (include "evenshard.object" (dict "file" $path "text" $text) | fromJson) -}}
      {{- end -}}
    {{- else -}}
      {{- $objects = concat $objects (include "evenshard.build" (dict "root" $root "folder" $path) | fromJson).objects -}}
    {{- end -}}
  {{- end -}}
  {{- range $map := $build.configMapGenerator -}}
    {{- if not $build.generatorOptions.disableNameSuffixHash -}}
      {{- fail (printf "%s: the chart gives no map a name with a hash" $file) -}}
    {{- end -}}
    {{- $data := dict -}}
    {{- range $literal := $map.literals -}}
      {{- $pair := regexSplit "=" $literal 2 -}}
      {{- $_ := set $data (first $pair) (last $pair) -}}
    {{- end -}}
    {{- $objects = append $objects (dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" (dict "name" $map.name) "data" $data) -}}
  {{- end -}}
  {{- $json := toJson (dict "objects" $objects) -}}
  {{- range $image := $build.images -}}
    {{- $tagged := printf "%s:%v" $image.newName (default "latest" $image.newTag) -}}
    {{- $full := ternary (printf "%s@%s" $image.newName (default "" $image.digest)) $tagged (hasKey $image "digest") -}}
    {{- $full = default $full (get $root.Values.images $image.name) -}}
    {{- $json = replace (printf "\"image\":%s" (toJson $image.name)) (printf "\"image\":%s" (toJson $full)) $json -}}
  {{- end -}}
  {{- $json -}}
{{- end -}}

{{/* One object of a manifest, in JSON. */}}
{{- define "evenshard.object" -}}
  {{- $object := fromYaml .text -}}
  {{- if not $object.kind -}}{{- fail (printf "%s holds something without a kind: %s" .file (default "" $object.Error)) -}}{{- end -}}
  {{- toJson $object -}}
{{- end -}}

{{/* The object in .object, changed in place: the namespace of the release, and the values of the chart. */}}
{{- define "evenshard.adapt" -}}
  {{- $object := .object -}}
  {{- $values := .root.Values -}}
  {{- $namespace := .root.Release.Namespace -}}
  {{- if eq $object.kind "Namespace" -}}
    {{- $_ := set $object.metadata "name" $namespace -}}
  {{- else if ne $object.kind "PriorityClass" -}}
    {{- $_ := set $object.metadata "namespace" $namespace -}}
  {{- end -}}
  {{- range $subject := $object.subjects -}}
    {{- if eq $subject.kind "ServiceAccount" -}}{{- $_ := set $subject "namespace" $namespace -}}{{- end -}}
  {{- end -}}
  {{- if and (eq $object.kind "ConfigMap") (eq $object.metadata.name "evenshard-endpoints") -}}
    {{- $_ := mergeOverwrite $object.data $values.endpoints -}}
  {{- end -}}
  {{- if eq $object.kind "ResourceQuota" -}}{{- $_ := mergeOverwrite $object.spec.hard $values.quota -}}{{- end -}}
  {{- $claims := default list (default dict $object.spec).volumeClaimTemplates -}}
  {{- if eq $object.kind "PersistentVolumeClaim" -}}{{- $claims = list $object -}}{{- end -}}
  {{- range $claim := $claims -}}
    {{- if $values.storageClass -}}{{- $_ := set $claim.spec "storageClassName" $values.storageClass -}}{{- end -}}
    {{- with get $values.storage $object.metadata.name -}}{{- $_ := set $claim.spec.resources.requests "storage" . -}}{{- end -}}
  {{- end -}}
{{- end -}}
