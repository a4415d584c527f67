package sim

import (
	"net/http"
	"slices"
	"strings"
	"sync"
)

// History is which hosts have made VMs and removed them, over all of a world, in order: "+NODE" and "-NODE", with the
// PVE node that was asked. The zero value has seen nothing. Safe for concurrent use.
type History struct {
	mu   sync.Mutex // for moments: hosts are asked side by side
	done []string
}

// Record is as Options wants it.
func (h *History) Record(r *http.Request, _ []byte, status int) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api2/json/nodes/"), "/")
	if status != http.StatusOK || len(parts) < 2 || parts[1] != "qemu" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case r.Method == http.MethodPost && len(parts) == 2:
		h.done = append(h.done, "+"+parts[0])
	case r.Method == http.MethodDelete && len(parts) == 3:
		h.done = append(h.done, "-"+parts[0])
	}
}

// List returns the records so far.
func (h *History) List() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.done)
}
