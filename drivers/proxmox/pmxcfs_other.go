//go:build !linux

package proxmox

import (
	"os"
	"strings"
	"time"
)

// Nodes of Proxmox VE run Linux. Elsewhere this reads what a simulated one writes.

func readFresh(name string, into []byte) ([]byte, error) {
	text, err := os.ReadFile(name)
	return append(into, text...), err
}

func listing(name string, into []byte) ([]byte, error) {
	entries, err := os.ReadDir(name)
	for _, e := range entries {
		into = append(append(into, e.Name()...), '/')
	}
	return into, err
}

func namesIn(list []byte) []string { return strings.Split(string(list), "/") }

type stamp struct {
	changed time.Time
	size    int64
}

func stampOf(name string) (stamp, error) {
	is, err := os.Stat(name)
	if err != nil {
		return stamp{}, err
	}
	return stamp{is.ModTime(), is.Size()}, nil
}
