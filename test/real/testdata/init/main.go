// Command init is the only program of the container that the tests on a real host make: it waits as process 1, and
// exits on a request to shut down or restart (lxc.signal.halt and lxc.signal.reboot: SIGPWR and SIGINT unless
// configured).
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGPWR, syscall.SIGINT, syscall.SIGTERM)
	<-asked
}
