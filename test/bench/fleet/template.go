package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// TemplateVMID is that of the VM template.
const TemplateVMID = 9000

// Template makes the VM template that is cloned, as an administrator of the host
// does: a machine with a small disk, turned into a template.
func Template(ctx context.Context, host http.RoundTripper, token, node string) error {
	a := admin{host, token, node}
	err := a.do(ctx, "/qemu", url.Values{
		"vmid": {fmt.Sprint(TemplateVMID)}, "name": {"golden"}, "memory": {"1024"}, "scsihw": {"virtio-scsi-single"},
		"scsi0": {"local-lvm:2"}, "net0": {"virtio,bridge=vmbr0"}, "boot": {"order=scsi0"},
	})
	if err == nil {
		err = a.do(ctx, fmt.Sprintf("/qemu/%d/template", TemplateVMID), nil)
	}
	if err != nil {
		return fmt.Errorf("make a template: %w", err)
	}
	return nil
}

// admin is a person who works on a node with its API alone.
type admin struct {
	host        http.RoundTripper
	token, node string
}

// do starts a task and waits for its end.
func (a admin) do(ctx context.Context, path string, form url.Values) error {
	var task string
	if err := a.send(ctx, http.MethodPost, path, form.Encode(), &task); err != nil {
		return err
	}
	for {
		var s struct{ Status, ExitStatus string }
		err := a.send(ctx, http.MethodGet, "/tasks/"+task+"/status", "", &s)
		switch {
		case err != nil:
			return err
		case s.Status == "stopped" && s.ExitStatus != "OK":
			return fmt.Errorf("POST %s: %s", path, s.ExitStatus)
		case s.Status == "stopped":
			return nil
		}
		pause := time.NewTimer(50 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		}
	}
}

// send sends a request below the node, and reads the data of its answer.
func (a admin) send(ctx context.Context, method, path, body string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, "https://pve.example/api2/json/nodes/"+a.node+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "PVEAPIToken="+a.token)
	if method != http.MethodGet {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := a.host.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, text)
	}
	return json.Unmarshal(text, &struct{ Data any }{into})
}
