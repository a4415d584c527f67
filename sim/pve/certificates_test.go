package pve_test

import (
	"crypto/x509"
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAuthority: an authority of the cluster and the certificate that it signed, named
// as PVE/Cluster/Setup.pm names them and shown as PVE/API2/Certificates.pm and
// PVE/Certificate.pm show them.
func TestAuthority(t *testing.T) {
	c := likeRecorded(t)
	list := c.list("/nodes/father/certificates/info")
	require.Len(t, list, 2)
	authority, own := list[0], list[1]
	require.Equal(t, "pve-root-ca.pem", authority["filename"])
	require.Regexp(t, `^/CN=Proxmox Virtual Environment/OU=[0-9a-f-]{36}/O=PVE Cluster Manager CA$`, authority["subject"])
	require.Equal(t, []any{authority["subject"], []any{}}, []any{authority["issuer"], authority["san"]})
	require.Equal(t, []any{"pve-ssl.pem", authority["subject"], "/OU=PVE Cluster Node/O=Proxmox Virtual Environment/CN=father"},
		[]any{own["filename"], own["issuer"], own["subject"]})
	require.Equal(t, []any{"127.0.0.1", "0000:0000:0000:0000:0000:0000:0000:0001", "localhost", "father"}, own["san"])

	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM([]byte(authority["pem"].(string))))
	block, _ := pem.Decode([]byte(own["pem"].(string)))
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"})
	require.NoError(t, err)
}

// TestCustomModel: a model that nobody made up is refused before anything else
// (get_custom_model in PVE/QemuServer/CPUConfig.pm).
func TestCustomModel(t *testing.T) {
	c := likeRecorded(t)
	const missing = "cpu: invalid format - Custom cputype 'x' not found"
	c.steps(
		step{"POST", "/nodes/father/qemu", form{"vmid": "100", "cpu": "custom-x"}, missing},
		step{"POST", "/nodes/father/qemu", form{"vmid": "100", "cpu": "kvm64"}, "OK"},
		step{"PUT", vmURL("100", "/config"), form{"cpu": "cputype=custom-x,flags=+aes", "cores": "0"}, "cores: value must have a minimum value of 1; " + missing},
	)
}
