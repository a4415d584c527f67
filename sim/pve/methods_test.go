package pve_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// caprice draws requests of all methods, with values that often fit their parameters.
type caprice struct {
	*rand.Rand
	methods []*pveapi.Method
	vars    surface
}

func newCaprice(seed uint64, vars surface) caprice {
	return caprice{rand.New(rand.NewPCG(seed, seed)), append(pveapi.Methods(), pve.PastTable()...), vars} //nolint:gosec // Drawn again by its seed.
}

// words are values that mean something somewhere.
var words = strings.Fields("father mother aunt local local-lvm tank 100 101 102 200 300 0 1 -1 7 4096 lab blue core wide names names home nightly one two ours " +
	"ann@pve root@pam devs vmbr0 eth0 eth1 pve tree sync hook push mail 192.0.2.1 192.0.2.0/24 2001:db8::1 198.51.100.9/33 lab-192.0.2.0-24 192.0.2.5-192.0.2.9 " +
	"start-address=192.0.2.5,end-address=192.0.2.9 local-lvm:1 local:cloudinit local-lvm:vm-100-disk-0 local:iso/x.iso scsi0 net0 mp0 rootfs virtio,bridge=vmbr0 " +
	"virtio,bridge=blue name=eth0,bridge=vmbr0,ip=dhcp node=father,path=0000:00:02.0,id=1234:1111 mapping=nightly dir,dirid=nightly daily */5 sat exact:type=vzdump " +
	"simple vlan evpn vxlan bgp isis ospf openfabric pve1c-0123456789 https://images.test/x.iso docker.io/library/nginx:latest /dev/sdb /dev/sdc /dev/sdb,/dev/sdc " +
	"/srv/x +1G 2G order=scsi0 VM.Audit PVEVMAdmin Administrator /vms/100 / x= =x ,,, ;; : ! % é a-b_c.d x.tar x.tar.zst")

// value draws one for a parameter.
func (r caprice) value(name string, v *pveapi.Value) string {
	known, ok := r.vars[name]
	switch roll := r.IntN(10); {
	case roll == 0:
		return words[r.IntN(len(words))]
	case len(v.Enum) > 0:
		return v.Enum[r.IntN(len(v.Enum))]
	case v.Type == "boolean":
		return fmt.Sprint(r.IntN(2))
	case ok && roll < 7:
		return known
	case v.Type == "integer" || v.Type == "number":
		return fmt.Sprint(r.IntN(200))
	}
	return words[r.IntN(len(words))]
}

// request draws one.
func (r caprice) request() *http.Request {
	m := r.methods[r.IntN(len(r.methods))]
	params := url.Values{}
	for _, name := range slices.Sorted(maps.Keys(m.Params)) {
		v := m.Params[name]
		if v.InPath || strings.Contains(m.Path, "{"+name+"}") || name == "delay" || v.Optional && r.IntN(6) > 0 {
			continue
		}
		name = strings.ReplaceAll(name, "[n]", fmt.Sprint(r.IntN(3)))
		for range 1 + r.IntN(8)/7 {
			params.Add(name, r.value(name, v))
		}
	}
	path := r.vars.path(m)
	if r.IntN(8) == 0 {
		path = strings.Replace(path, "/father/", "/mother/", 1)
	}
	if r.IntN(8) == 0 {
		parts := strings.Split(path, "/")
		parts[len(parts)-1] = url.PathEscape(words[r.IntN(len(words))])
		path = strings.Join(parts, "/")
	}
	const at = "https://pve/api2/json"
	if m.Verb == http.MethodGet || m.Verb == http.MethodDelete {
		req, err := http.NewRequest(m.Verb, at+path+"?"+params.Encode(), nil)
		if err != nil {
			panic(err)
		}
		return req
	}
	req, err := http.NewRequest(m.Verb, at+path, strings.NewReader(params.Encode()))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return req
}

// play sends requests to a host on which there is one of each kind of thing, and tells
// what it answers. However odd they are, it answers in its own words: nothing breaks.
func play(t *testing.T, seed uint64, version string, requests int) (all []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Seed: 7, Version: version, Nodes: []string{"mother", "aunt"}})
		draw := newCaprice(seed, furnish(c))
		furnishMore(c, version)
		c = c.ticketed()
		for range requests {
			r := draw.request()
			said := r.Method + " " + r.URL.RequestURI()
			a := c.send(r)
			require.GreaterOrEqual(t, a.status, 200, said)
			require.NotContains(t, a.reason, "\n", said)
			if strings.Contains(a.raw, "CERTIFICATE-----") { // It is recreated for every host.
				a.raw = "a certificate"
			}
			all = append(all, withoutCertificates(fmt.Sprint(said, " ", a.status, " ", a.reason, " ", a.raw)))
			if draw.IntN(4) == 0 {
				time.Sleep(time.Duration(draw.IntN(5000)) * time.Millisecond)
			}
		}
		time.Sleep(10 * time.Minute) // What they started comes to its end.
		c.h.Snapshot()
	})
	return all
}

// FuzzMethods sends requests of all methods with drawn parameters, one after another to
// one host; the same ones to a second host get the same answers.
func FuzzMethods(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(seed, seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, old bool) {
		version := "9.2"
		if old {
			version = "8.4"
		}
		const requests = 150
		first := play(t, seed, version, requests)
		for i, said := range play(t, seed, version, requests) {
			require.Equal(t, first[i], said, "request %d", i)
		}
	})
}
