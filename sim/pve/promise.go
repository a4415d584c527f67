package pve

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
)

// promised are deviations of PVE's own answers from what its API table promises, as
// recorded: the simulator deviates likewise. By method and path, the beginnings of
// what [pveapi.Method.CheckReturn] says, each with what PVE does.
var promised = map[string]map[string]string{
	"GET /access/roles/{roleid}":              {"VM.Monitor: not in": "a privilege that PVE 9 does not have"},
	"GET /nodes/{node}/lxc/{vmid}/interfaces": {"data: null instead of array": "a container that does not run has none"},
	"GET /nodes/{node}/qemu/{vmid}/migrate":   {"has-dbus-vmstate: missing": "PVE 8 does not know it", "local_disks[].size: missing": "of a disk without a size"},
	"GET /cluster/options": {
		"crs: object instead of string": "property strings are shown in their parts", "ha: object instead of string": "likewise",
		"location: object instead of string": "likewise", "migration: object instead of string": "likewise", "next-id: object instead of string": "likewise",
		"notify: object instead of string": "likewise", "registered-tags: array instead of string": "likewise", "replication: object instead of string": "likewise",
		"tag-style: object instead of string": "likewise", "u2f: object instead of string": "likewise", "user-tag-access: object instead of string": "likewise",
		"webauthn: object instead of string": "likewise",
	},
	"GET /access/users":                  {"data[].tokens: null": "a user without tokens has none"},
	"GET /access/users/{userid}":         {"tokens: null": "likewise"},
	"GET /nodes/{node}/status":           {"memory.available: missing": "PVE 8 does not know it"},
	"GET /nodes/{node}/tasks/{upid}/log": {"data: object instead of array": "of an unknown task it answers one line that is not a list"},
	"GET /nodes/{node}/vzdump/defaults": {
		"fleecing: object instead of string":    "property strings are shown in their parts",
		"performance: object instead of string": "likewise",
		"notification-policy: not in":           "a parameter that PVE 9 does not have",
	},
	"POST /cluster/ha/resources/{sid}/migrate":  {"data: null instead of object": "PVE 8 answers nothing"},
	"POST /cluster/ha/resources/{sid}/relocate": {"data: null instead of object": "likewise"},
	"GET /pools/{poolid}":                       {"poolid: not in": "PVE shows it, though it is in the path"},
}

// promise holds a good answer against the API table and tells what deviates that is
// not known to.
func (h *Host) promise(c *core.Call, a *answer) {
	if h.cfg.Promise == nil || c.M == nil || c.Req.Format != "json" || a.status != http.StatusOK {
		return
	}
	name := c.Req.Method + " " + c.M.Path
	if !h.cfg.Kept.First(name, a.body) {
		return
	}
	var body struct{ Data any }
	decoder := json.NewDecoder(bytes.NewReader(a.body))
	decoder.UseNumber()
	if err := decoder.Decode(&body); err != nil {
		h.cfg.Promise(name + ": " + err.Error())
		return
	}
	good := true
	for _, deviation := range c.M.CheckReturn(body.Data) {
		if !known(name, deviation) {
			good = false
			h.cfg.Promise(name + ": " + deviation)
		}
	}
	if good {
		h.cfg.Kept.Add(name, a.body)
	}
}

// position is where in a list something is, which does not matter.
var position = regexp.MustCompile(`\[\d+\]`)

func known(name, deviation string) bool {
	deviation = position.ReplaceAllString(deviation, "[]")
	for prefix := range promised[name] {
		if strings.HasPrefix(deviation, prefix) {
			return true
		}
	}
	return false
}
