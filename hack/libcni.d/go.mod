// What hack/libcni builds with libcni 1.3, which containerd 2.1 and CRI-O 1.34 have.
module millrace/hack/libcni

go 1.23.0

require (
	github.com/containerd/go-cni v1.1.13
	github.com/cri-o/ocicni v0.4.3
	github.com/sirupsen/logrus v1.9.3
)

require (
	github.com/containernetworking/cni v1.3.0 // indirect
	github.com/containernetworking/plugins v1.4.1 // indirect
	github.com/fsnotify/fsnotify v1.7.0 // indirect
	github.com/petermattis/goid v0.0.0-20240813172612-4fcff4a6cae7 // indirect
	github.com/sasha-s/go-deadlock v0.3.5 // indirect
	github.com/vishvananda/netlink v1.2.1-beta.2 // indirect
	github.com/vishvananda/netns v0.0.4 // indirect
	golang.org/x/sys v0.23.0 // indirect
)
