// Istio's istio-iptables, which its releases have as a command of pilot-agent.
package main

import (
	"os"

	"istio.io/istio/pkg/log"
	"istio.io/istio/tools/istio-iptables/pkg/cmd"
)

func main() {
	if err := cmd.GetCommand(log.DefaultOptions()).Execute(); err != nil {
		os.Exit(1)
	}
}
