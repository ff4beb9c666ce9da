// Reports which network containerd (go-cni) and CRI-O (ocicni) load from each directory whose path is a line of the standard
// input: a line of JSON for each. Its module file chooses the version of libcni.
//
// Arguments: the plugins that are installed, because CRI-O skips networks without them.
package main

import (
	"bufio"
	"encoding/json"
	"io"
	"log"
	"os"
	"path/filepath"

	gocni "github.com/containerd/go-cni"
	"github.com/cri-o/ocicni/pkg/ocicni"
	"github.com/sirupsen/logrus"
)

// Loaded is the default network of each runtime.
type Loaded struct {
	// Containerd has the list and then its plugins in their order, and nothing if no network could be loaded.
	Containerd []string `json:"containerd"`
	// CRIO is the network's name, empty if there is none. ocicni reveals nothing else.
	CRIO string `json:"crio"`
}

// It accepts every cniVersion that the test uses, so that CRI-O refuses no network for the versions of its plugins.
const plugin = `#!/bin/sh
echo '{"cniVersion":"1.0.0","supportedVersions":["0.1.0","0.3.1","0.4.0","1","1.0","1.0.0","1.1.0","9.9.9","new"]}'
`

func main() {
	logrus.SetOutput(io.Discard)
	plugins, err := os.MkdirTemp("", "plugins")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(plugins)
	for _, name := range os.Args[1:] {
		if err := os.WriteFile(filepath.Join(plugins, name), []byte(plugin), 0o755); err != nil {
			log.Fatal(err)
		}
	}
	lines, results := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		loaded := Loaded{containerd(lines.Text()), crio(lines.Text(), plugins)}
		if err := results.Encode(loaded); err != nil {
			log.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

func containerd(directory string) []string {
	cni, err := gocni.New(gocni.WithPluginConfDir(directory))
	if err != nil {
		log.Fatal(err)
	}
	if cni.Load(gocni.WithDefaultConf) != nil {
		return nil
	}
	list := cni.GetConfig().Networks[0].Config
	configurations := []string{list.Source}
	for _, plugin := range list.Plugins {
		configurations = append(configurations, plugin.Source)
	}
	return configurations
}

func crio(directory, plugins string) string {
	cni, err := ocicni.InitCNINoInotify("", directory, plugins, plugins)
	if err != nil {
		log.Fatal(err)
	}
	return cni.GetDefaultNetworkName()
}
