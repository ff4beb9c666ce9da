// oras, as its project builds it.
package main

import (
	"context"
	"os"
	"os/signal"

	"oras.land/oras/cmd/oras/root"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if root.New().ExecuteContext(ctx) != nil {
		os.Exit(1)
	}
}
