package doctor_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
)

// Checks that were skipped for one reason are one line, and only a failure says why and how to fix it.
func TestReport(t *testing.T) {
	h := doctor.HostReport{Host: "father", API: "https://192.0.2.10:8006", Checks: []doctor.Check{
		{Name: "api", Result: doctor.OK, Seen: "Proxmox VE 9.2"},
		{Name: "token", Result: doctor.Failed, Seen: "401", Why: "nothing can be read\nwithout it", Fix: []string{"pveum user token add"}, Denied: true},
		{Name: "nodes", Result: doctor.NotChecked, Seen: "no login"},
		{Name: "storages", Result: doctor.NotChecked, Seen: "no login"},
	}}
	var text strings.Builder
	h.Text(&text, false)
	require.Equal(t, `host father  https://192.0.2.10:8006
  ok           api       Proxmox VE 9.2
  FAIL         token     401
      why: nothing can be read
           without it
      fix: pveum user token add
  not checked  nodes, storages  no login
father: 1 ok, 0 warnings, 1 failed, 2 not checked
`, text.String())
	text.Reset()
	h.Text(&text, true)
	require.Contains(t, text.String(), "\x1b[31;1mFAIL")

	r := doctor.Report{Hosts: []doctor.HostReport{h}}
	require.True(t, r.Denied())
	h.Checks = append(h.Checks, doctor.Check{Name: "disk", Result: doctor.Failed})
	require.False(t, doctor.Report{Hosts: []doctor.HostReport{h}}.Denied())
}
