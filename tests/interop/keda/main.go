// KEDA's own external scalers against a server, as KEDA's operator uses them. It is built within KEDA's module: install-keda.sh.
//
// Usage: keda once|push '{"scalerAddress": ..., ...}'. The argument is the metadata of a trigger.
//
// once: prints what the HPA would be given, then for each metric its value and whether the trigger is active, or the error.
// push: prints what a trigger of type external-push is told, one line for each message, until its standard input ends.
// All output is JSON, one object on each line.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	v2 "k8s.io/api/autoscaling/v2"

	"github.com/kedacore/keda/v2/pkg/scalers"
	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
)

const patience = 60 * time.Second

var printing sync.Mutex

func tell(values map[string]any) {
	printing.Lock()
	defer printing.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(values); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func config(metadata map[string]string) *scalersconfig.ScalerConfig {
	return &scalersconfig.ScalerConfig{
		ScalableObjectName:      "consumers",
		ScalableObjectNamespace: "shop",
		ScalableObjectType:      "ScaledObject",
		TriggerMetadata:         metadata,
		MetricType:              v2.AverageValueMetricType,
		TriggerIndex:            0,
		GlobalHTTPTimeout:       patience,
	}
}

func tellSpecs(specs []v2.MetricSpec) []string {
	names := []string{}
	for _, spec := range specs {
		names = append(names, spec.External.Metric.Name)
		tell(map[string]any{"spec": spec.External.Metric.Name, "average": spec.External.Target.AverageValue.AsApproximateFloat64()})
	}
	return names
}

func once(metadata map[string]string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	scaler, err := scalers.NewExternalScaler(config(metadata))
	if err != nil {
		fail(err)
	}
	defer scaler.Close(ctx)
	for _, name := range tellSpecs(scaler.GetMetricSpecForScaling(ctx)) {
		metrics, active, err := scaler.GetMetricsAndActivity(ctx, name)
		if err != nil {
			tell(map[string]any{"metric": name, "error": err.Error()})
			continue
		}
		for _, metric := range metrics {
			tell(map[string]any{"metric": metric.MetricName, "value": metric.Value.AsApproximateFloat64(), "active": active})
		}
	}
}

func push(metadata map[string]string) {
	ctx, cancel := context.WithCancel(context.Background())
	scaler, err := scalers.NewExternalPushScaler(config(metadata))
	if err != nil {
		fail(err)
	}
	defer scaler.Close(ctx)
	if streamer, ok := scaler.(scalers.MetricSpecStreamer); ok {
		go func() {
			for specs := range streamer.MetricSpecChan() {
				tellSpecs(specs)
			}
		}()
	}
	active := make(chan bool)
	go scaler.Run(ctx, active)
	go func() {
		for told := range active {
			tell(map[string]any{"active": told})
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
}

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: keda once|push METADATA"))
	}
	metadata := map[string]string{}
	if err := json.Unmarshal([]byte(os.Args[2]), &metadata); err != nil {
		fail(err)
	}
	switch os.Args[1] {
	case "once":
		once(metadata)
	case "push":
		push(metadata)
	default:
		fail(fmt.Errorf("%q is neither once nor push", os.Args[1]))
	}
}
