// What hack/libcni builds with libcni 1.1, which containerd 1.7 has.
module millrace/hack/libcni

go 1.23.0

require (
	github.com/containerd/go-cni v1.1.9
	github.com/cri-o/ocicni v0.4.2
	github.com/sirupsen/logrus v1.9.3
)

require (
	github.com/containernetworking/cni v1.1.2 // indirect
	github.com/containernetworking/plugins v1.4.1 // indirect
	github.com/fsnotify/fsnotify v1.7.0 // indirect
	github.com/vishvananda/netlink v1.2.1-beta.2 // indirect
	github.com/vishvananda/netns v0.0.4 // indirect
	golang.org/x/sys v0.17.0 // indirect
)
