// Command etcd is etcd as it is released. Its module holds replace directives, which keep it from being a
// tool of another module; a main package of our own may call it.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
