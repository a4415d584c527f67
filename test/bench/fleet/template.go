package fleet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// TemplateVMID is that of the VM template.
const TemplateVMID = 9000

// Template makes the VM template that is cloned, as an administrator of the host
// does: a machine with a small disk, turned into a template. The host must be one
// whose tasks take no time.
func Template(ctx context.Context, host http.RoundTripper, token, node string) error {
	guests := "/api2/json/nodes/" + node + "/qemu"
	for _, r := range []struct{ path, body string }{
		{guests, url.Values{
			"vmid": {fmt.Sprint(TemplateVMID)}, "name": {"golden"}, "memory": {"1024"}, "scsihw": {"virtio-scsi-single"},
			"scsi0": {"local-lvm:2"}, "net0": {"virtio,bridge=vmbr0"}, "boot": {"order=scsi0"},
		}.Encode()},
		{fmt.Sprintf("%s/%d/template", guests, TemplateVMID), ""},
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://pve.example"+r.path, strings.NewReader(r.body))
		if err != nil {
			return fmt.Errorf("make a template: %w", err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Authorization", "PVEAPIToken="+token)
		res, err := host.RoundTrip(req)
		if err != nil {
			return fmt.Errorf("make a template: %w", err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			return fmt.Errorf("make a template: POST %s: %s: %s", r.path, res.Status, text)
		}
	}
	return nil
}
