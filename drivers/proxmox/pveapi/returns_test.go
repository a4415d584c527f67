package pveapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

func TestCheckReturn(t *testing.T) {
	tests := map[string]struct {
		method, data string
		deviations   []string
		extra        []string
	}{
		"nothing":          {"PUT /nodes/{node}/qemu/{vmid}/config", `null`, nil, nil},
		"not nothing":      {"PUT /nodes/{node}/qemu/{vmid}/config", `"UPID:"`, []string{"data: string instead of null"}, nil},
		"a string":         {"POST /nodes/{node}/qemu", `"UPID:"`, nil, nil},
		"no string":        {"POST /nodes/{node}/qemu", `null`, []string{"data: null instead of string"}, nil},
		"a number as text": {"GET /nodes/{node}/qemu/{vmid}/config", `{"digest":"x","cpulimit":"0.5","cores":"2","onboot":1}`, nil, nil},
		"text as a number": {"GET /nodes/{node}/qemu/{vmid}/config", `{"digest":"x","memory":512}`, nil, nil},
		"wrong scalars": {
			"GET /nodes/{node}/qemu/{vmid}/config", `{"digest":"x","cores":"two","onboot":2,"cpulimit":true,"name":["a"],"sockets":1.5}`,
			[]string{
				"cores: string instead of integer", "cpulimit: boolean instead of number", "name: array instead of string",
				"onboot: number 2 instead of boolean", "sockets: number 1.5 instead of integer",
			},
			nil,
		},
		"indexed members": {"GET /nodes/{node}/qemu/{vmid}/config", `{"digest":"x","net3":"virtio","scsi30":{}}`, []string{"scsi30: object instead of string"}, nil},
		"missing and extra": {
			"GET /nodes/{node}/qemu/{vmid}/config", `{"net32":"virtio","color":"red"}`,
			[]string{"digest: missing"},
			[]string{"color", "net32"},
		},
		"elements": {
			"GET /cluster/resources", `[{"id":"qemu/100","type":"qemu","vmid":100,"pressure":1},{"id":"x","vmid":{},"pressure":2},7]`,
			[]string{"[1].type: missing", "[1].vmid: object instead of integer", "[2]: number 7 instead of object"},
			[]string{"[].pressure"},
		},
		"an object for a list": {"GET /cluster/resources", `{}`, []string{"data: object instead of array"}, nil},
		"closed objects":       {"GET /access/acl", `[{"path":"/","roleid":"r","type":"user","ugid":"u","x":1}]`, []string{"[0].x: not in the description, which allows no more"}, nil},
		"described extras": {
			"GET /access/users/{userid}", `{"tokens":{"a":{"privsep":0},"b":{"expire":"soon"},"c":1}}`,
			[]string{"tokens.b.expire: string instead of integer", "tokens.c: number 1 instead of object"},
			nil,
		},
		"an undescribed object": {"GET /nodes/{node}/qemu/{vmid}/agent/info", `{"result":{}}`, nil, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			verb, path, _ := strings.Cut(test.method, " ")
			decoder := json.NewDecoder(strings.NewReader(test.data))
			decoder.UseNumber()
			var data any
			require.NoError(t, decoder.Decode(&data))
			require.Equal(t, test.deviations, method(t, verb, path).CheckReturn(data))
			require.Equal(t, test.extra, method(t, verb, path).Extra(data))

			// Floating-point numbers, as decoded by default, give the same.
			require.NoError(t, json.Unmarshal([]byte(test.data), &data))
			require.Equal(t, test.deviations, method(t, verb, path).CheckReturn(data))
		})
	}
	require.Nil(t, (&pveapi.Method{}).CheckReturn(5), "a method that promises nothing")
}
