package importer_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// words are values of parameters whose type does not say what they may be.
var words = map[string][]string{
	"affinity": {"0-3"}, "amd-sev": {"std"}, "args": {"-device secret=${token}"}, "boot": {"order=scsi0", "order=scsi0;net0", "cdn"}, "bootdisk": {"scsi0"},
	"cdrom": {"none"}, "cicustom": {"user=local:snippets/u.yaml"}, "cipassword": {"do-not-write-me"}, "ciuser": {"ann"}, "cpu": {"host", "kvm64,flags=+aes"},
	"description": {"one line", "two\nlines with ${x} and %{y}\n", "  indented\n\nEOT\n\ttab", "ümlaut \"quoted\" \\ back"},
	"hookscript":  {"local:snippets/h.pl"}, "hostpci[n]": {"0000:01:00.0", "mapping=gpu"}, "hotplug": {"1", "network,usb"}, "intel-tdx": {"type=tdx"},
	"ipconfig[n]": {"ip=dhcp", "ip=10.1.0.7/24,gw=10.1.0.1", "ip6=auto", "ip=10.1.0.8/24,ip6=FD00:0::8/64"},
	"name":        {"web", "Web.Example.com", "web-1", "9lives", "x"}, "hostname": {"cache", "Cache.example.com", "web"}, "nameserver": {"10.0.0.1", "10.0.0.1 10.0.0.2"},
	"searchdomain": {"example.com"}, "parallel[n]": {"/dev/parport0"}, "rng0": {"source=/dev/urandom", "source=/dev/hwrng"}, "serial[n]": {"socket", "/dev/ttyS0"},
	"smbios1": {"uuid=5c9dd5f5-0d4f-4d67-9f16-3a9f3c8fd0a%d,manufacturer=QUNNRQ==,base64=1", "serial=x1"}, "sshkeys": {"ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCd%20ann"},
	"startdate": {"now", "2026-01-02T03:04:05"}, "startup": {"order=2,up=30", "3", "down=5"}, "tags": {"db;web", "Prod;a.b"}, "usb[n]": {"spice", "host=1234:5678", "mapping=key"},
	"vmgenid": {"1", "0"}, "vmstatestorage": {"local-lvm"}, "watchdog": {"i6300esb,action=reset"}, "virtiofs[n]": {"dirid=share"}, "machine": {"q35", "pc", "pc-q35-9.0+pve0"},
	"efidisk0": {"local-lvm:1,efitype=4m,pre-enrolled-keys=1", "local-lvm:1"}, "tpmstate0": {"local-lvm:1,version=v2.0"}, "entrypoint": {"/bin/app -x"}, "env": {"PASSWORD=do-not-write-me"},
	"features": {"nesting=1", "keyctl=1,nesting=1", "mount=nfs"}, "timezone": {"host", "Europe/Berlin"}, "dev[n]": {"/dev/net/tun"}, "ivshmem": {"size=1"}, "keyboard": {"de"},
	"scsi[n]": {"local-lvm:4", "local-lvm:2,discard=on,ssd=1", "local:1,format=qcow2", "none,media=cdrom", "/dev/sdb", "local-lvm:cloudinit"}, "virtio[n]": {"local-lvm:3", "local-lvm:1,iothread=1,cache=none"},
	"sata[n]": {"local-lvm:1", "none,media=cdrom", "local:iso/x.iso,media=cdrom"}, "ide[n]": {"local-lvm:1", "none,media=cdrom", "local-lvm:cloudinit", "cdrom,media=cdrom"},
	"mp[n]":  {"local-lvm:2,mp=/srv/data", "local-lvm:1,mp=/a b,backup=1", "/srv/host,mp=/mnt/host", "local-lvm:1,mp=/x/../y/,acl=1,mountoptions=noatime", "local-lvm:1,mp=/q,quota=1,ro=1"},
	"bridge": {"vmbr0"},
}

// requestOnly are parameters of the request, and what a test gives itself.
var requestOnly = strings.Fields("archive bwlimit delete digest force ha-managed ignore-unpack-errors import-working-storage live-restore lock node ostemplate password pool " +
	"reboot restore rootfs ssh-public-keys start storage template unique unused[n] vmid")

// hosts makes hosts at random.
type hosts struct {
	*rand.Rand
	t    *testing.T
	host *pve.Host
	root map[string]string // headers of root@pam with a ticket, who may set everything
	set  map[string]int    // how many guests have a key
}

// ask sends a request as root, and returns the status and the document.
func (r *hosts) ask(method, path string, values url.Values) (int, map[string]any) {
	r.t.Helper()
	body, target := values.Encode(), "https://pve.test:8006/api2/json"+path
	req, err := http.NewRequestWithContext(r.t.Context(), method, target, strings.NewReader(body))
	require.NoError(r.t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for k, v := range r.root {
		req.Header.Set(k, v)
	}
	res, err := r.host.RoundTrip(req)
	require.NoError(r.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(r.t, err)
	doc := map[string]any{}
	_ = json.Unmarshal(text, &doc)
	return res.StatusCode, doc
}

func (r *hosts) login(password string) {
	r.t.Helper()
	status, doc := r.ask("POST", "/access/ticket", url.Values{"username": {"root@pam"}, "password": {password}})
	require.Equal(r.t, 200, status, doc)
	login := doc["data"].(map[string]any)
	r.root = map[string]string{"Cookie": "PVEAuthCookie=" + url.QueryEscape(fmt.Sprint(login["ticket"])), "CSRFPreventionToken": fmt.Sprint(login["CSRFPreventionToken"])}
}

// value draws one for a parameter.
func (r *hosts) value(name string, v *pveapi.Value, vmid int) string {
	if list, ok := words[name]; ok && len(list) > 0 {
		text := list[r.IntN(len(list))]
		if strings.Contains(text, "uuid=") {
			text = fmt.Sprintf(text, vmid%7)
		}
		return text
	}
	switch {
	case len(v.Enum) > 0:
		return v.Enum[r.IntN(len(v.Enum))]
	case v.Type == "boolean":
		return fmt.Sprint(r.IntN(2))
	case v.Type == "integer" || v.Type == "number":
		least := 0
		_, _ = fmt.Sscan(v.Min.String(), &least)
		return fmt.Sprint(least + r.IntN(4)*16)
	case len(v.Sub) > 0:
		var parts []string
		for _, m := range slices.Sorted(maps.Keys(v.Sub)) {
			if s := v.Sub[m]; (r.IntN(3) == 0 || !s.Optional) && s.Alias == "" && s.KeyAlias == "" {
				parts = append(parts, m+"="+r.value(m, s, vmid))
			}
		}
		return strings.Join(parts, ",")
	}
	return "x"
}

// guest makes one, and says whether the host took it. What the host refuses is taken out.
func (r *hosts) guest(vmid int, lxc bool) bool {
	path := "/nodes/father/qemu"
	p := url.Values{"vmid": {fmt.Sprint(vmid)}}
	if r.IntN(8) > 0 {
		p.Set("net0", fmt.Sprintf("virtio,bridge=vmbr0,firewall=%d", r.IntN(2)))
		p.Set("scsi0", "local-lvm:8")
	}
	if lxc {
		path = "/nodes/father/lxc"
		p = url.Values{"vmid": {fmt.Sprint(vmid)}, "ostemplate": {"local:vztmpl/" + archive}, "rootfs": {"local-lvm:4"}, "unprivileged": {fmt.Sprint(min(1, r.IntN(5)))}}
		if r.IntN(8) > 0 {
			p.Set("net0", []string{"name=eth0,bridge=vmbr0,ip=dhcp", "name=eth0,bridge=vmbr0,ip=10.1.0.7/24,gw=10.1.0.1", "name=lan0,bridge=vmbr0,ip6=auto,tag=5"}[r.IntN(3)])
		}
	}
	m, _, _ := pveapi.Lookup("POST", path)
	for _, name := range slices.Sorted(maps.Keys(m.Params)) {
		v := m.Params[name]
		key := strings.ReplaceAll(name, "[n]", fmt.Sprint(r.IntN(3)))
		if slices.Contains(requestOnly, name) || p.Has(key) || r.IntN(7) > 0 {
			continue
		}
		if text := r.value(name, v, vmid); text != "" {
			p.Set(key, text)
		}
	}
	for range 60 {
		status, doc := r.ask("POST", path, p)
		if upid := fmt.Sprint(doc["data"]); status == 200 {
			if r.await(upid) {
				for key := range p {
					r.set[strings.TrimRight(key, "0123456789")]++
				}
				return true
			}
		}
		before := len(p)
		if errs, ok := doc["errors"].(map[string]any); ok {
			for key := range errs {
				p.Del(key)
			}
		}
		if len(p) == before {
			keys := slices.DeleteFunc(slices.Sorted(maps.Keys(p)), func(k string) bool { return slices.Contains([]string{"vmid", "ostemplate", "rootfs"}, k) })
			if len(keys) == 0 {
				return false
			}
			p.Del(keys[r.IntN(len(keys))])
		}
	}
	return false
}

// await reports whether a task ended well.
func (r *hosts) await(upid string) bool {
	for range 100 {
		_, doc := r.ask("GET", "/nodes/father/tasks/"+url.PathEscape(upid)+"/status", nil)
		if d, ok := doc["data"].(map[string]any); ok && d["status"] == "stopped" {
			return d["exitstatus"] == "OK"
		}
		time.Sleep(time.Second)
	}
	return false
}

const archive = "debian-13-standard_13.1-2_amd64.tar.zst"

// furnish fills the host with guests, and pools, templates, and states of guests that keep them from being adopted.
func (r *hosts) furnish(guests int) {
	r.t.Helper()
	_, doc := r.ask("POST", "/nodes/father/aplinfo", url.Values{"storage": {"local"}, "template": {archive}})
	require.True(r.t, r.await(fmt.Sprint(doc["data"])))
	r.ask("POST", "/pools", url.Values{"poolid": {"Team_A"}})
	r.ask("PUT", "/pools/Team_A", url.Values{"comment": {"of its members"}})
	if r.IntN(3) > 0 {
		r.ask("POST", "/pools", url.Values{"poolid": {"team-b"}, "comment": {[]string{"", "ümlaut ${x} ", "two words"}[r.IntN(3)]}})
		r.ask("POST", "/cluster/firewall/aliases", url.Values{"name": {"home"}, "cidr": {"10.0.0.0/8"}})
		r.ask("POST", "/cluster/firewall/ipset", url.Values{"name": {"admins"}, "comment": {[]string{"", "by hand"}[r.IntN(2)]}})
		for _, entry := range []string{"192.0.2.7", "198.51.100.0/24", "fd00::/64", "dc/home"}[r.IntN(4):] {
			r.ask("POST", "/cluster/firewall/ipset/admins", url.Values{"cidr": {entry}, "nomatch": {fmt.Sprint(r.IntN(2))}})
		}
		r.ask("POST", "/cluster/firewall/ipset", url.Values{"name": {"no_name"}})
	}
	r.ask("POST", "/cluster/mapping/usb", url.Values{"id": {"key"}, "map": {"node=father,id=1d6b:0002"}})
	r.ask("POST", "/cluster/mapping/pci", url.Values{"id": {"gpu"}, "map": {"node=father,path=0000:00:02.0,id=1234:1111"}})
	r.ask("POST", "/cluster/mapping/dir", url.Values{"id": {"share"}, "map": {"node=father,path=/srv/share"}})
	for i := range guests {
		vmid, lxc := 100+i, r.IntN(3) == 0
		if !r.guest(vmid, lxc) {
			continue
		}
		at := fmt.Sprintf("/nodes/father/%s/%d", map[bool]string{true: "lxc", false: "qemu"}[lxc], vmid)
		if r.IntN(3) == 0 {
			r.ask("PUT", "/pools/Team_A", url.Values{"vms": {fmt.Sprint(vmid)}})
		}
		switch r.IntN(10) {
		case 0, 1, 2:
			_, doc := r.ask("POST", at+"/status/start", nil)
			r.await(fmt.Sprint(doc["data"]))
		case 3:
			_, doc := r.ask("POST", at+"/status/start", nil)
			r.await(fmt.Sprint(doc["data"]))
			r.ask("PUT", at+"/config", url.Values{"memory": {"3072"}, "onboot": {"1"}})
		case 4:
			r.ask("PUT", at+"/config", url.Values{"description": {strings.Repeat("long ", 1500)}})
		case 5:
			_, doc := r.ask("POST", at+"/template", nil)
			r.await(fmt.Sprint(doc["data"]))
		case 6:
			r.ask("POST", at+"/snapshot", url.Values{"snapname": {"one"}})
		}
	}
}
