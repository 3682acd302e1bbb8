package scalers

import v2 "k8s.io/api/autoscaling/v2"

// KEDA has this constant in the file of another scaler, which is not built here.
const externalMetricType v2.MetricSourceType = v2.ExternalMetricSourceType
