package proxmox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

func volumeIDs(w *world, storage string) []string {
	var out []string
	for _, v := range w.Host.Snapshot().Volumes[storage] {
		out = append(out, v.ID)
	}
	return out
}

// TestTemplateThatIsOnlyNamed: what a template names by volume or VMID must be there,
// be a template, and be of the right kind; the plan says so before anything is made.
func TestTemplateThatIsOnlyNamed(t *testing.T) {
	lies := "local:vztmpl/debian-12.tar.zst"
	for name, c := range map[string]struct {
		template guest.Template
		vm       bool   // a VM is made from it, else a container
		says     string // "" if all is well
	}{
		"volume":               {guest.Template{Volume: lies}, false, ""},
		"volume not there":     {guest.Template{Volume: "local:vztmpl/other.tar.zst"}, false, "template.x is not usable: it names volume local:vztmpl/other.tar.zst, and there is no such volume on father"},
		"container template":   {guest.Template{VMID: 9001}, false, ""},
		"VM template":          {guest.Template{VMID: 9000}, true, ""},
		"nothing there":        {guest.Template{VMID: 9999}, false, "ct.n is not created: it needs template.x, which is not usable"},
		"no template":          {guest.Template{VMID: 9002}, false, "it names template 9002, and there is CT 9002, which is not a template"},
		"a VM for a container": {guest.Template{VMID: 9000}, false, "there is VM 9000, of which ct.n cannot be a clone"},
		"a container for a VM": {guest.Template{VMID: 9001}, true, "there is CT 9001, of which vm.n cannot be a clone"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.Template(9000, "golden")
				w.ctTemplate(9001)
				w.Host.Edit(func(e *pve.Edit) {
					e.Add(pve.Guest{VMID: 9002, Kind: "lxc", Config: map[string]string{"hostname": "plain"}})
				})
				w.declare("x", &c.template)
				if c.vm {
					w.Node("n", func(v *guest.VM) { v.Template = "x" })
				} else {
					w.ct("n", func(v *guest.CT) { v.Template = "x" })
				}
				before := volumeIDs(w, "local")
				p := w.Plan()
				if c.says != "" {
					require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
					require.True(t, p.Findings.HasErrors())
					require.Contains(t, fmt.Sprint(p.Findings), c.says)
					return
				}
				w.Apply()
				w.Converged()
				require.True(t, w.Guest(10000).Running)
				w.Drop("n")
				w.Apply()
				delete(w.Site.Objects, model.Address{Kind: "template", Name: "x"})
				w.Apply()
				w.Converged()
				require.Equal(t, before, volumeIDs(w, "local"), "what was only named is never removed")
				require.Len(t, w.Host.Snapshot().Guests, 3)
			})
		})
	}
}

// TestTemplateInUseStays: as long as a container that was made from it stays, for
// whatever reason; so does an image.
func TestTemplateInUseStays(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.ct("cache", nil)
		w.Node("web-1", nil)
		w.Apply()
		require.Contains(t, volumeIDs(w, "local"), "local:vztmpl/homestak.home.debian-ct.000000000000.tar.zst")
		w.Site.Manifests["web"].Suspend = true
		objects := w.Site.Objects
		w.Site.Objects = model.State{}
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Contains(t, fmt.Sprint(p.Findings), "template.debian-ct is not deleted: ct.cache still needs it")
		require.Contains(t, fmt.Sprint(p.Findings), "image.debian-12 is not deleted: vm.web-1 still needs it")
		w.Site.Objects, w.Site.Manifests["web"].Suspend = objects, false
		w.Converged()
		w.Drop("cache")
		w.Drop("web-1")
		w.Site.Objects = model.State{}
		w.Apply()
		require.NotContains(t, strings.Join(volumeIDs(w, "local"), " "), "homestak.")
	})
}

// TestTemplateWithNewContent: the new file is fetched, the old one goes, and what was
// made from it stays as it is.
func TestTemplateWithNewContent(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.ct("cache", nil)
		w.Apply()
		before := w.Guest(10000)
		url := "https://images.test/debian-12-standard.tar.zst"
		w.declare("debian-ct", &guest.Template{URL: url, Checksum: "sha256:" + strings.Repeat("ab", 32)})
		p := w.Apply()
		require.Len(t, p.Steps, 1, "%s", proxmoxtest.Describe(p))
		require.Equal(t, []string{"file"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, []string{"local:vztmpl/homestak.home.debian-ct.abababababab.tar.zst"}, volumeIDs(w, "local"))
		require.Equal(t, before, w.Guest(10000))
		w.Converged()
	})
}

// TestTemplatesThatCannotBe are refused before anything is asked of PVE.
func TestTemplatesThatCannotBe(t *testing.T) {
	for name, c := range map[string]guest.Template{
		"nothing":           {},
		"two ways":          {VMID: 9000, Volume: "local:vztmpl/x.tar.zst"},
		"no archive":        {URL: "https://images.test/debian.qcow2"},
		"no URL":            {URL: "images.test/debian.tar.zst"},
		"no template":       {Volume: "local:iso/x.iso"},
		"half a checksum":   {URL: "https://images.test/x.tar.zst", Checksum: "sha256:00"},
		"not a volume's id": {Volume: "vztmpl/x.tar.zst"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.declare("x", &c)
				w.ct("n", func(v *guest.CT) { v.Template = "x" })
				_, found := w.Site.Want("father")
				require.NotZero(t, found.Errors())
			})
		})
	}
}

// TestContainersThatCannotBe: what PVE would refuse, or keeps for root@pam, is said
// of the files.
func TestContainersThatCannotBe(t *testing.T) {
	disk := func(d guest.CTDisk) func(*guest.CT) {
		return func(c *guest.CT) { c.Disks = append(c.Disks, d) }
	}
	nic := func(n guest.CTNIC) func(*guest.CT) {
		return func(c *guest.CT) { n.Name = "lan"; c.NICs = []guest.CTNIC{n} }
	}
	option := func(k, v string) func(*guest.CT) {
		return func(c *guest.CT) { c.Options = map[string]string{k: v} }
	}
	for says, edit := range map[string]func(*guest.CT){
		"ct without template":                                   func(c *guest.CT) { c.Template = "" },
		"node without size":                                     func(c *guest.CT) { c.Preset = "" },
		`feature "fuse" cannot be set by an API token`:          func(c *guest.CT) { c.Features = []string{"nesting", "fuse"} },
		"features of a privileged container cannot be set":      func(c *guest.CT) { c.Features, c.Unprivileged = []string{"nesting"}, false },
		`option "hookscript" cannot be set by an API token`:     option("hookscript", "local:snippets/x"),
		`option "dev0" cannot be set by an API token`:           option("dev0", "/dev/x"),
		`option "mp7" has an attribute of its own`:              option("mp7", "local-lvm:1,mp=/x"),
		`PVE has no option "bwlimit" for a container`:           option("bwlimit", "5"),
		`PVE refuses tty = "9"`:                                 option("tty", "9"),
		`disk "data" has no path to be mounted on`:              disk(guest.CTDisk{Name: "data", Size: 1}),
		`disk "data" without a size`:                            disk(guest.CTDisk{Name: "data", Path: "/x"}),
		"the root disk has neither path nor backup":             disk(guest.CTDisk{Name: "root", Path: "/x"}),
		`PVE has no "fast" in mp0`:                              disk(guest.CTDisk{Name: "data", Size: 1, Path: "/x", Options: map[string]string{"fast": "1"}}),
		`"size" is set by an attribute`:                         disk(guest.CTDisk{Name: "data", Size: 1, Path: "/x", Options: map[string]string{"size": "1G"}}),
		`disk "data" with quotas in an unprivileged container`:  disk(guest.CTDisk{Name: "data", Size: 1, Path: "/x", Options: map[string]string{"quota": "yes"}}),
		`PVE refuses timezone = "US/Eastern"`:                   func(c *guest.CT) { c.Timezone = "US/Eastern" },
		"VLAN tag out of range":                                 nic(guest.CTNIC{VLAN: 5000}),
		`"10.0.0.5" is not an address with prefix length`:       nic(guest.CTNIC{IP: "10.0.0.5"}),
		`"10.0.0.5/24" is not an address with prefix length`:    nic(guest.CTNIC{IP6: "10.0.0.5/24"}),
		"gateway 10.9.0.1 is not in the network of 10.0.0.5/24": nic(guest.CTNIC{IP: "10.0.0.5/24", Gateway: "10.9.0.1"}),
		`"fd00::1" is not an IPv4 address`:                      nic(guest.CTNIC{IP: "10.0.0.5/24", Gateway: "fd00::1"}),
		`"10.0.0.1" is not an IPv6 address`:                     nic(guest.CTNIC{IP6: "fd00::5/64", Gateway6: "10.0.0.1"}),
		"gateway without a static address":                      nic(guest.CTNIC{Gateway6: "fd00::1", IP6: "auto"}),
		"PVE refuses net0":                                      nic(guest.CTNIC{Options: map[string]string{"host-managed": "maybe"}}),
		`"mtu" is set by an attribute`:                          nic(guest.CTNIC{Options: map[string]string{"mtu": "1400"}}),
		"mtu out of range":                                      nic(guest.CTNIC{MTU: 63}),
		"rate out of range":                                     nic(guest.CTNIC{Rate: -1}),
		`"x" is not a VLAN`:                                     nic(guest.CTNIC{Trunks: []string{"x"}}),
		`range "2-4" in the trunk of a container`:               nic(guest.CTNIC{Trunks: []string{"2-4"}}),
		"PVE refuses timezone":                                  func(c *guest.CT) { c.Timezone = "../x" },
		"password too short":                                    func(c *guest.CT) { c.Password = "abc" },
		`power = "off" is not valid`:                            func(c *guest.CT) { c.Power = "off" },
		`"a b" is not a tag`:                                    func(c *guest.CT) { c.Tags = []string{"a b"} },
		"description holds an ownership tag":                    func(c *guest.CT) { c.Description = "homestak-gitops: {}" },
		"swap out of range":                                     func(c *guest.CT) { c.Swap = -1 },
	} {
		t.Run(says, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.ct("n", edit)
				_, found := w.Site.Want("father")
				require.NotZero(t, found.Errors())
				require.Contains(t, fmt.Sprint(found), says)
			})
		})
	}
}

// TestSiteTimezoneThatNoContainerTakes is one error, at the site's block, however many
// containers there are, and none where there are only machines.
func TestSiteTimezoneThatNoContainerTakes(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Site.Timezone, w.Site.At = "Etc/UTC", diag.Range{File: "site.hcl"}
		w.Node("web-1", nil)
		_, found := w.Site.Want("father")
		require.Zero(t, found.Errors())
		w.ct("cache", nil)
		own := w.ct("own", func(c *guest.CT) { c.Timezone = "Europe/Berlin" })
		w.ct("other", nil)
		_, found = w.Site.Want("father")
		found = found.Sorted()
		require.Equal(t, 1, found.Errors(), "%v", found)
		i := slices.IndexFunc(found, func(f diag.Finding) bool { return f.Severity == diag.Error })
		require.Equal(t, "site.hcl", found[i].At.File)
		require.Contains(t, found[i].Summary, `timezone = "Etc/UTC"`)
		own.Timezone = "Etc/UTC"
		w.Site.Timezone = "UTC"
		_, found = w.Site.Want("father")
		require.Equal(t, 1, found.Errors())
		require.Equal(t, "ct.own", found.Sorted()[0].Address)
	})
}

// TestKeysOfAContainerAreOfItsBirth: later ones cannot reach it, and that is said.
func TestKeysOfAContainerAreOfItsBirth(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.ct("cache", nil)
		w.Apply()
		require.Empty(t, w.Plan().Findings)
		w.Site.Secrets.Values["ssh_keys"]["new"] = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCx new@home"
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Len(t, p.Findings, 1)
		require.Contains(t, p.Findings[0].Summary, "the ssh keys for ct.cache changed since it was made")
	})
}

// TestAMountPointDetachedByHandComesBack with its data.
func TestAMountPointDetachedByHandComesBack(t *testing.T) {
	for _, power := range []string{"running", "stopped"} {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			w.ct("cache", func(c *guest.CT) {
				c.Power, c.Disks = power, []guest.CTDisk{{Name: "data", Size: 5, Path: "/srv"}, {Name: "logs", Size: 2, Path: "/var/log"}}
			})
			w.Apply()
			all, mp := volumesOf(w, 10000), w.Guest(10000).Config["mp0"]
			w.detach(10000, "mp0", "unused0")
			p := w.Apply()
			require.Contains(t, p.Steps[0].Reason, "disk data was detached by hand, and is attached again with its data ("+file(mp)+")")
			w.Converged()
			require.Equal(t, mp, w.Guest(10000).Config["mp0"])
			require.Equal(t, all, volumesOf(w, 10000))
		})
	}
}

// TestDisksOfAContainerAreSafe: none is taken for another, and none goes while the
// container is protected.
func TestDisksOfAContainerAreSafe(t *testing.T) {
	data := []guest.CTDisk{{Name: "data", Size: 5, Path: "/srv"}}
	for name, c := range map[string]struct {
		hand func(*pve.Edit, string)
		file func(*guest.CT)
		says string
	}{
		"detached by hand, beside another volume": {func(e *pve.Edit, volume string) {
			e.Set(10000, "mp0", "")
			e.Set(10000, "unused0", volume)
			e.Set(10000, "unused1", "local-lvm:vm-10000-disk-7")
		}, nil, "`pct set 10000 --mp0 VOLUME,mp=PATH`"},
		"root detached": {func(e *pve.Edit, _ string) { e.Set(10000, "rootfs", "") }, nil, "its root disk is gone"},
		"shrinks":       {nil, func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "data", Size: 4, Path: "/srv"}} }, "cannot shrink from 5 to 4 GiB"},
		"moves running": {nil, func(c *guest.CT) {
			c.Disks = []guest.CTDisk{{Name: "data", Size: 5, Path: "/srv", Storage: "local-zfs"}}
		}, "can only be moved while it is stopped"},
		"goes, protected": {func(e *pve.Edit, _ string) { e.Set(10000, "protection", "1") }, func(c *guest.CT) { c.Disks = nil }, "it is protected, and so is its disk data"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, twoStorages(), func(t *testing.T, w *world) {
				ct := w.ct("cache", func(c *guest.CT) { c.Disks = data })
				w.Apply()
				volume, _, _ := strings.Cut(w.Guest(10000).Config["mp0"], ",")
				if c.hand != nil {
					w.Host.Edit(func(e *pve.Edit) { c.hand(e, volume) })
				}
				if c.file != nil {
					c.file(ct)
				}
				p := w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.Contains(t, fmt.Sprint(p.Findings)+p.Findings[0].Detail, c.says)
			})
		})
	}
}
