package network_test

import (
	"encoding/base64"
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/aspect/aspecttest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect/network"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

var update = flag.Bool("update", false, "write the golden files")

func TestAspects(t *testing.T) {
	aspecttest.Golden(t, slices.Concat(network.All(), network.PVEAspects()), *update)
}

// An answer may be anything: it is refused, or gives a value, and never a panic.
func FuzzRead(f *testing.F) {
	f.Add("dev\teth0\nifupdown\t=\neni\t/etc/network/interfaces\t=aWZhY2UgZXRoMCBpbmV0IHN0YXRpYw==\n")
	f.Add("dev\teth0\nnetworkd\t=U3RhdGU6IHJvdXRhYmxl\nunit\tx\t=W05ldHdvcmtdCkRIQ1A9eWVzCg==\n")
	want, err := spec.Read([]byte(`{"version": 1, "node": "edge", "network": {"ip": "10.0.0.6/24", "gateway": "10.0.0.1", "dns": ["10.0.0.2"]}}`))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, answer string) {
		q := &aspect.Query{Want: want, Record: &guest.Record{}}
		for _, a := range network.All() {
			r, err := a.Read(q, guest.Answer{Text: answer}, spec.Empty("edge"))
			if err != nil {
				continue
			}
			for _, s := range r.Steps() {
				require.NotEmpty(t, s.Text)
			}
		}
	})
}

// An answer may be anything: it is refused, or gives a value, and never a panic.
func FuzzReadPVE(f *testing.F) {
	f.Add("source\t/etc/apt/sources.list.d/x.sources\t=VVJJczogaHR0cHM6Ly9lbnRlcnByaXNlLnByb3htb3guY29tCg==\nkey\t=L3g=\n")
	f.Add("interfaces\t=aWZhY2UgZXRoMCBpbmV0IGRoY3AK\ncard\t=ZXRoMA==\nports\t=\nstate\t=YXNrcwo=\n")
	want, err := spec.Read([]byte(`{"version": 1, "node": "edge", "config": {"pve": {"no_subscription": true, "remove_subscription_nag": true, "bridge": "vmbr0"}}}`))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, answer string) {
		q := &aspect.Query{Want: want, Record: &guest.Record{}}
		for _, a := range network.PVEAspects() {
			r, err := a.Read(q, guest.Answer{Text: answer}, spec.Empty("edge"))
			if err != nil {
				continue
			}
			for _, s := range r.Steps() {
				require.NotEmpty(t, s.Text)
			}
		}
	})
}

// A machine that came back with another kernel is not restarted again and again: a finding says what to do.
func TestAMachineIsRestartedOnceForAKernel(t *testing.T) {
	all := network.PVEAspects()
	kernel := all[slices.IndexFunc(all, func(a aspect.Aspect) bool { return a.Name == "pvekernel" })]
	want, err := spec.Read([]byte(`{"version": 1, "node": "edge", "config": {"pve": {"restart": "23:00-05:00"}}}`))
	require.NoError(t, err)
	read := func(running, tried string) error {
		var answer strings.Builder
		for _, row := range [][2]string{{"running", running}, {"installed", "6.8.12-9-pve"}, {"now", "04:00"}, {"tried", tried}} {
			answer.WriteString(row[0] + "\t=" + base64.StdEncoding.EncodeToString([]byte(row[1]+"\n")) + "\n")
		}
		_, err := kernel.Read(&aspect.Query{Want: want, Record: &guest.Record{}}, guest.Answer{Text: answer.String()}, spec.Empty("edge"))
		return err
	}
	require.ErrorContains(t, read("6.1.0-28-amd64", "6.8.12-9-pve"), "the machine was restarted for kernel 6.8.12-9-pve, and runs 6.1.0-28-amd64")
	require.NoError(t, read("6.1.0-28-amd64", "6.5.11-1-pve"), "another kernel was installed since")
	require.NoError(t, read("6.8.12-9-pve", "6.8.12-9-pve"))
}
