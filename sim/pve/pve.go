// Package pve is Proxmox VE in memory, behind its real HTTP protocol.
//
// A [Host] is one simulated installation: a node (or several in a cluster), its storages, bridges, users and
// guests. It has three interfaces, which give the same responses: an [net/http.RoundTripper] without a network
// (RoundTrip), a handler (ServeHTTP), and a TLS server that closes connections when PVE does (Serve).
//
// # One world, one mutex, a lazy clock
//
// All state is one value, the [core.World], and each request has it exclusively: host.go accepts the request and
// updates the state, one handler runs, the response is written. There are no goroutines, so nothing happens between
// requests. Later work (the end of a task, the sample of the status daemon every ten seconds) is an event, and the
// next request runs all that are due, in the order of time. So a Host works inside testing/synctest and costs
// nothing while idle, and a test may advance the clock by an hour.
//
// # How a request is handled
//
// host.go parses it as PVE does (core/request.go), applies the fault rules, finds the method in the API table
// ([core.Table]), authenticates the caller (host/tickets.go), checks privileges (core/rights.go) and parameters by
// that table, and calls the handler. Handlers make the checks that PVE makes in code, and have all effects.
// answer.go encodes the result with PVE's header lines; promise.go compares it with the API table.
//
// # Where to look
//
// This package has the front end and the API for tests: public.go, edit.go, snapshot.go. Everything else is a
// package below:
//
//   - perl, content: values, failures and files, without a host
//   - core: the world, calls, tasks, guests, storages, volumes, privileges, and how
//     methods are described and found
//   - guests: what VMs and containers have in common; qemu for VMs, lxc for containers
//   - transfer: backups, migrations, replication jobs
//   - host: users and permissions, storages; node: certificate and settings of a node
//   - cluster: tasks and nodes of the cluster, firewall, HA, SDN, mappings, metric
//     servers, notifications
//
// A package with an Area registers its routes with it. It keeps its state by [core.PartOf], and follows guests by
// the hooks of the world. A new area is a line in areas.
//
// The simulator implements the methods in testdata/methods.txt. Any other method of the API returns 501 with an
// explanation, and Snapshot lists such calls. It never pretends success.
//
// Texts and the order of checks follow recorded exchanges with a real PVE 8.4 or else PVE's source; comments name
// the Perl file.
package pve

import (
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/sim/pve/cluster"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/lxc"
	"github.com/homestak/homestak-gitops/sim/pve/qemu"
	"github.com/homestak/homestak-gitops/sim/pve/transfer"
)

// areas are all parts of Proxmox VE that are simulated.
var areas = sync.OnceValue(func() []core.Area {
	return slices.Concat(
		cluster.Areas(), guests.Areas(), host.Areas(), []core.Area{lxc.Area(), nodeArea()}, qemu.Areas(), transfer.Areas(),
	)
})

// calls are their methods, which are the same for all hosts.
var calls = sync.OnceValue(func() *core.Table {
	return core.NewTable(areas())
})

// Host is a simulated installation. Its methods may be called from any
// goroutine. Inside a testing/synctest bubble use it only from there.
type Host struct {
	cfg   core.Config
	clock clock
	cert  certificate
	table *core.Table

	// mu guards w: requests come in on many goroutines, and each must see the
	// world between two others. It is held while a handler runs (microseconds)
	// and never while anything waits.
	mu    sync.Mutex
	w     *core.World
	files clusterFiles // under mu
}

// New makes a host. It panics when the configuration makes no sense: a broken
// storage, token or version is a mistake of the program, and New is used where
// no error could be handled.
func New(c core.Config) *Host {
	c = c.WithDefaults()
	h := &Host{cfg: c, clock: newClock(c.Speed), table: calls()}
	now := h.clock.now()
	h.cert, h.w = newCertificate(c.Node, now), core.NewWorld(c, now)
	for _, a := range areas() {
		if a.Begin != nil {
			a.Begin(h.w)
		}
	}
	cluster.Populate(h.w, c.Guests)
	h.w.Begin()
	h.w.Certificate, h.w.Authority = h.cert.Parsed, h.cert.Authority
	h.w.Fingerprint = strings.TrimPrefix(h.cert.Fingerprint, "sha256:")
	h.files.began = now.Unix()
	h.publish()
	return h
}

// publish writes what a node shows of its guests. The caller has the mutex, or the host alone.
func (h *Host) publish() {
	if h.cfg.Files != "" {
		h.files.publish(h.w, h.cfg.Files)
	}
}

// Fingerprint is that of the certificate: "sha256:" and the SHA-256 of its DER
// form in lower-case hex.
func (h *Host) Fingerprint() string { return h.cert.Fingerprint }

// Certificate returns the certificate of the HTTPS server, in PEM.
func (h *Host) Certificate() string { return asPEM(h.cert.Parsed) }

// Authority is the certificate that signed it, in PEM: /etc/pve/pve-root-ca.pem.
func (h *Host) Authority() string { return asPEM(h.cert.Authority) }

// Token is the API token that the host knew from the start, as
// "user@realm!name=secret".
func (h *Host) Token() string { return h.w.Cfg.Token }

// Node is the name of the node that answers.
func (h *Host) Node() string { return h.cfg.Node }

// ServeHTTP answers one request of a Go HTTP server. Such a server cannot send
// PVE's reason phrases, so a failure takes over the connection where that is
// possible, writes its status line itself and closes, as PVE would.
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := h.serve(r.Context(), r)
	if a.dropped || a.status >= 400 {
		if hijacker, ok := w.(http.Hijacker); ok {
			if conn, buffered, err := hijacker.Hijack(); err == nil {
				if !a.dropped {
					_ = a.write(buffered.Writer, r)
					_ = buffered.Flush()
				}
				_ = conn.Close()
				return
			}
		}
		if a.dropped {
			panic(http.ErrAbortHandler)
		}
	}
	for key, values := range a.header() {
		if key != "Connection" { // The server of net/http decides that itself.
			w.Header()[key] = values
		}
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}
