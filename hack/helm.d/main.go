// Renders charts as `helm template` does, one after the other: Helm takes longer to start than to render.
// A line of stdin is a JSON list of its arguments: release, chart, and then --namespace, --values and --set.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"strings"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/cli"
	"helm.sh/helm/v3/pkg/cli/values"
	"helm.sh/helm/v3/pkg/getter"
)

type response struct {
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	Failed bool   `json:"failed"`
}

// As newTemplateCmd of Helm's cmd/helm/template.go sets up the client and prints its release.
func render(arguments []string) (string, error) {
	client := action.NewInstall(&action.Configuration{Log: func(string, ...interface{}) {}})
	client.DryRun, client.DryRunOption, client.ClientOnly, client.Replace = true, "true", true, true
	client.ReleaseName = arguments[0]
	options := values.Options{}
	flags := flag.NewFlagSet("", flag.ExitOnError)
	flags.StringVar(&client.Namespace, "namespace", "default", "")
	flags.Func("values", "", func(file string) error { options.ValueFiles = append(options.ValueFiles, file); return nil })
	flags.Func("set", "", func(value string) error { options.Values = append(options.Values, value); return nil })
	flags.Parse(arguments[2:])
	merged, err := options.MergeValues(getter.All(cli.New()))
	if err != nil {
		return "", err
	}
	chart, err := loader.Load(arguments[1])
	if err != nil {
		return "", err
	}
	release, err := client.Run(chart, merged)
	if err != nil && release != nil {
		err = fmt.Errorf("%w\n\nUse --debug flag to render out invalid YAML", err)
	}
	if err != nil {
		return "", err
	}
	manifests := fmt.Sprintln(strings.TrimSpace(release.Manifest))
	for _, hook := range release.Hooks {
		manifests += fmt.Sprintf("---\n# Source: %s\n%s\n", hook.Path, hook.Manifest)
	}
	return manifests, nil
}

func main() {
	log.SetFlags(log.Lshortfile)
	debug.SetGCPercent(1000) // next to nothing of what it allocates stays
	requests, responses := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var arguments []string
		if requests.Decode(&arguments) != nil {
			return
		}
		var stderr bytes.Buffer
		log.SetOutput(&stderr)
		stdout, err := render(arguments)
		if err != nil {
			fmt.Fprintln(&stderr, "Error:", err)
		}
		responses.Encode(response{stdout, stderr.String(), err != nil})
	}
}
