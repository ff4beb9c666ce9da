// What hack/crio builds. Each module is built as its own go.mod and go.sum say: the checksum database has no sum any more for a
// module that CRI-O needs, and asks for in a version that only its own go.sum knows.
module millrace/hack/crio

go 1.24.2

require (
	github.com/cri-o/cri-o v1.34.0
	github.com/opencontainers/runc v1.3.4
	sigs.k8s.io/cri-tools v1.34.0
)
