package proxmox_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// vlanAware makes a bridge of the host VLAN aware, as an administrator does.
func (w *world) vlanAware(bridge string) {
	w.T.Helper()
	_, err := w.Driver.Put(w.T.Context(), "/nodes/father/network/"+bridge, map[string]any{"type": "bridge", "bridge_vlan_aware": true, "autostart": true})
	require.NoError(w.T, err)
	upid, err := w.Driver.Put(w.T.Context(), "/nodes/father/network", nil)
	require.NoError(w.T, err)
	require.NoError(w.T, w.Driver.WaitTask(w.T.Context(), upid))
}

// versions are those of the hosts that the program was tried on.
var versions = []string{"8.4", "9.2"}

// onEach runs a story on a host of each version.
func onEach(t *testing.T, story func(t *testing.T, w *world)) {
	t.Helper()
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			inTime(t, pve.Config{Version: v, TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.vlanAware("vmbr0")
				story(t, w)
			})
		})
	}
}

// fullNIC has a value for every setting of a card of a VM.
func fullNIC() guest.NIC {
	return guest.NIC{
		Name: "lan", VLAN: 5, MAC: "bc:24:11:00:00:09", IP: "10.0.0.5/24", IP6: "FD00:0::5/64", Gateway6: "fd00::1", Model: "virtio",
		Firewall: true, MTU: 1400, Queues: 4, Rate: 12.5, LinkDown: true, Trunks: []string{"30", "20-24", "25"},
	}
}

func fullCTNIC() guest.CTNIC {
	return guest.CTNIC{
		Name: "lan", VLAN: 5, MAC: "bc:24:11:00:00:09", IP: "10.0.0.5/24", IP6: "FD00:0::5/64", Gateway6: "fd00::1",
		Firewall: true, MTU: 1400, Rate: 12.5, LinkDown: true, Trunks: []string{"30", "20", "30"},
	}
}

// TestEverySettingOfANIC is there after one apply, with the text in which PVE keeps it,
// and another plan finds nothing.
func TestEverySettingOfANIC(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.NICs = []guest.NIC{fullNIC(), {Name: "dmz", Model: "e1000", IP6: "auto"}} })
		w.ct("cache", func(c *guest.CT) { c.NICs = []guest.CTNIC{fullCTNIC()} })
		w.Apply()
		w.Converged()
		time.Sleep(time.Minute)
		w.Converged()
		vm, ct := w.Guest(10000), w.Guest(10001)
		if vm.Kind == "lxc" {
			vm, ct = ct, vm
		}
		require.Equal(t, "virtio=BC:24:11:00:00:09,bridge=vmbr0,firewall=1,link_down=1,mtu=1400,queues=4,rate=12.5,tag=5,trunks=20-25;30", vm.Config["net0"])
		require.Equal(t, "ip=10.0.0.5/24,gw=10.0.0.1,gw6=fd00::1,ip6=fd00::5/64", vm.Config["ipconfig0"])
		require.Contains(t, vm.Config["net1"], "e1000=")
		require.Equal(t, "ip6=auto", vm.Config["ipconfig1"])
		require.Equal(t, "name=eth0,bridge=vmbr0,firewall=1,gw=10.0.0.1,gw6=fd00::1,hwaddr=BC:24:11:00:00:09,ip=10.0.0.5/24,ip6=fd00::5/64,"+
			"link_down=1,mtu=1400,rate=12.5,tag=5,trunks=20;30,type=veth", ct.Config["net0"])
		require.True(t, vm.Running && ct.Running)
	})
}

// TestNICChangedByHandIsFound: each setting by its own name, on both kinds, and it is
// put back; what no file names goes back to its default.
func TestNICChangedByHandIsFound(t *testing.T) {
	const vm = "virtio=BC:24:11:00:00:09,bridge=vmbr0"
	const ct = "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:08,ip=dhcp,type=veth"
	onEach(t, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", MAC: "BC:24:11:00:00:09"}} })
		w.ct("cache", func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "lan", MAC: "BC:24:11:00:00:08"}} })
		w.Apply()
		w.Converged()
		ids := map[string]int{w.Guest(10000).Kind: 10000, w.Guest(10001).Kind: 10001}
		for _, c := range []struct{ kind, key, byHand, was, path string }{
			{"qemu", "net0", "e1000=BC:24:11:00:00:09,bridge=vmbr0", vm, "model"},
			{"qemu", "net0", vm + ",firewall=1", vm, "firewall"},
			{"qemu", "net0", vm + ",mtu=1400", vm, "mtu"},
			{"qemu", "net0", vm + ",queues=2", vm, "queues"},
			{"qemu", "net0", vm + ",rate=3.5", vm, "rate"},
			{"qemu", "net0", vm + ",link_down=1", vm, "link_down"},
			{"qemu", "net0", vm + ",trunks=7;8", vm, "trunks"},
			{"qemu", "ipconfig0", "ip=dhcp,ip6=auto", "ip=dhcp", "ip6"},
			{"lxc", "net0", ct + ",firewall=1", ct, "firewall"},
			{"lxc", "net0", ct + ",mtu=1400", ct, "mtu"},
			{"lxc", "net0", ct + ",rate=3.5", ct, "rate"},
			{"lxc", "net0", ct + ",link_down=1", ct, "link_down"},
			{"lxc", "net0", ct + ",trunks=7;8", ct, "trunks"},
			{"lxc", "net0", ct + ",ip6=auto", ct, "ip6"},
		} {
			id := ids[c.kind]
			w.Host.Edit(func(e *pve.Edit) { e.Set(id, c.key, c.byHand) })
			p := w.Plan()
			require.Len(t, p.Steps, 1, "%v", c)
			require.Equal(t, []string{"nic.lan." + c.path}, proxmoxtest.Paths(p.Steps[0]), "%v", c)
			require.Empty(t, w.Run(p), "%v", c)
			require.Equal(t, c.was, w.Guest(id).Config[c.key])
			w.Converged()
		}
		for _, same := range []struct{ kind, key, value string }{ // what PVE may write, and what means the same
			{"qemu", "net0", vm + ",firewall=0,link_down=0,queues=0,rate=0"},
			{"lxc", "net0", ct + ",firewall=0,link_down=0,rate=0"},
		} {
			w.Host.Edit(func(e *pve.Edit) { e.Set(ids[same.kind], same.key, same.value) })
			w.Converged()
		}
	})
}

// TestUndeclaredMembersOfANIC survive edits of the others: they are those that a
// version of PVE has and the language has not.
func TestUndeclaredMembersOfANIC(t *testing.T) {
	inTime(t, pve.Config{Version: "9.2", TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		ct := w.ct("cache", nil)
		w.Apply()
		ids := map[string]int{w.Guest(10000).Kind: 10000, w.Guest(10001).Kind: 10001}
		add := func(kind, member string) {
			net0 := w.Guest(ids[kind]).Config["net0"]
			w.Host.Edit(func(e *pve.Edit) { e.Set(ids[kind], "net0", net0+","+member) })
		}
		add("qemu", "host-tunnel=1")
		add("lxc", "host-managed=1")
		w.Converged()
		w.VM("web-1").NICs, ct.NICs = []guest.NIC{{Name: "lan", Rate: 5}}, []guest.CTNIC{{Name: "lan", Rate: 5}}
		p := w.Apply()
		require.Len(t, p.Steps, 2)
		for kind, member := range map[string]string{"qemu": "host-tunnel=1", "lxc": "host-managed=1"} {
			require.Contains(t, w.Guest(ids[kind]).Config["net0"], member)
			require.Contains(t, w.Guest(ids[kind]).Config["net0"], "rate=5")
		}
		w.Converged()
		ct.NICs[0].Options = map[string]string{"host-managed": "1"} // declared from now on
		w.Converged()
		ct.NICs[0].Rate = 6 // the ownership tag learns of it with the next change
		w.Apply()
		ct.NICs[0].Options = nil
		p = w.Apply()
		require.Equal(t, []string{"nic.lan.options.host-managed"}, proxmoxtest.Paths(p.Steps[0]))
		require.NotContains(t, w.Guest(ids["lxc"]).Config["net0"], "host-managed")
		w.Converged()
	})
}

// TestNICOfARunningContainer: what PVE stores without giving it to the running container
// is called so, and nothing else is.
func TestNICOfARunningContainer(t *testing.T) {
	lan := func(n guest.CTNIC) func(*guest.CT) {
		n.Name = "lan"
		return func(c *guest.CT) { c.NICs = []guest.CTNIC{n} }
	}
	for name, c := range map[string]struct {
		do    func(*guest.CT)
		path  string
		class model.Class
	}{
		"firewall":          {lan(guest.CTNIC{Firewall: true}), "nic.lan.firewall", model.ClassHot},
		"rate":              {lan(guest.CTNIC{Rate: 0.5}), "nic.lan.rate", model.ClassHot},
		"link_down":         {lan(guest.CTNIC{LinkDown: true}), "nic.lan.link_down", model.ClassHot},
		"ip6":               {lan(guest.CTNIC{IP6: "auto"}), "nic.lan.ip6", model.ClassHot},
		"mtu":               {lan(guest.CTNIC{MTU: 1400}), "nic.lan.mtu", model.ClassPending},
		"trunks":            {lan(guest.CTNIC{Trunks: []string{"6"}}), "nic.lan.trunks", model.ClassPending},
		"mtu with leave":    {func(c *guest.CT) { lan(guest.CTNIC{MTU: 1400})(c); c.Restart = "allowed" }, "nic.lan.mtu", model.ClassRestart},
		"trunks with leave": {func(c *guest.CT) { lan(guest.CTNIC{Trunks: []string{"6"}})(c); c.Restart = "allowed" }, "nic.lan.trunks", model.ClassRestart},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, w *world) {
				ct := w.ct("cache", nil)
				w.Apply()
				time.Sleep(time.Minute)
				before := w.Host.Snapshot().Requests["POST /nodes/{node}/lxc/{vmid}/status/reboot"]
				c.do(ct)
				p := w.Plan()
				require.Equal(t, []string{c.path}, proxmoxtest.Paths(p.Steps[0]))
				require.Equal(t, c.class, p.Steps[0].Class)
				require.Equal(t, c.class != model.ClassHot, strings.Contains(p.Steps[0].Reason, "which PVE does not list as pending"), p.Steps[0].Reason)
				require.Empty(t, w.Run(p))
				require.Empty(t, w.Guest(10000).Pending)
				restarts := w.Host.Snapshot().Requests["POST /nodes/{node}/lxc/{vmid}/status/reboot"] - before
				require.Equal(t, c.class == model.ClassRestart, restarts == 1)
				w.Converged()
				ct.NICs, ct.Restart = nil, "never" // back to the default
				w.Apply()
				w.Converged()
				require.NotContains(t, w.Guest(10000).Config["net0"], fmt.Sprintf("%s=", name))
			})
		})
	}
}

// TestTenthNICOfAContainerWaits: PVE unplugs the first ten only.
func TestTenthNICOfAContainerWaits(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		ct := w.ct("cache", func(c *guest.CT) {
			for i := range 11 {
				c.NICs = append(c.NICs, guest.CTNIC{Name: fmt.Sprintf("n%d", i)})
			}
		})
		w.Apply()
		w.Converged()
		ct.NICs = ct.NICs[:10]
		p := w.Apply()
		require.Equal(t, model.ClassPending, p.Steps[0].Class)
		require.NotEmpty(t, w.Guest(10000).Pending)
		ct.NICs = ct.NICs[:9]
		p = w.Apply()
		require.Equal(t, model.ClassHot, p.Steps[0].Class)
		require.NotContains(t, w.Guest(10000).Config, "net9")
	})
}

// TestTrunkNeedsAVLANAwareBridge: on any other one the guest does not start.
func TestTrunkNeedsAVLANAwareBridge(t *testing.T) {
	for _, v := range versions {
		inTime(t, pve.Config{Version: v}, func(t *testing.T, w *world) {
			w.Node("web-1", func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", Trunks: []string{"7"}}} })
			w.ct("cache", func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "lan", Trunks: []string{"7"}}} })
			failed := w.Run(w.Plan())
			require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "start failed")
			require.ErrorContains(t, failed[model.Address{Kind: "ct", Name: "cache"}], "startup for container")
			w.vlanAware("vmbr0")
			w.Apply()
			w.Converged()
		})
	}
}

// TestTrunksAskForTheirVLANs, one by one as PVE does, or for the bridge where they are
// very many; and doctor finds a bridge that cannot have them.
func TestTrunksAskForTheirVLANs(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", VLAN: 5, Trunks: []string{"7-9", "12"}}} })
		w.ct("cache", func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "lan", Trunks: []string{"20"}}} })
		w.Node("wide", func(v *guest.VM) {
			v.NICs = []guest.NIC{{Name: "lan", Bridge: "vmbr1", Trunks: []string{"2-4094"}}}
		})
		var network []string
		for _, g := range w.grants(9) {
			if strings.HasPrefix(g, "SDN.Use") {
				network = append(network, g)
			}
		}
		const zone = "SDN.Use on /sdn/zones/localnetwork/"
		require.ElementsMatch(t, []string{zone + "vmbr0/5", zone + "vmbr0/7", zone + "vmbr0/8", zone + "vmbr0/9", zone + "vmbr0/12", zone + "vmbr0/20", zone + "vmbr1"}, network)
		bridge := proxmoxtest.CheckNamed(t, w.Examine(nil), "bridge vmbr0")
		require.Equal(t, doctor.Failed, bridge.Result)
		require.Contains(t, bridge.Why, "PVE starts no guest that has them")
		w.vlanAware("vmbr0")
		require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, w.Examine(nil), "bridge vmbr0").Result)
	})
}

// TestTrunkOfATokenWithItsVLANs: what the needs say is enough for PVE, and each of it is
// needed.
func TestTrunkOfATokenWithItsVLANs(t *testing.T) {
	for _, v := range versions {
		for _, lacks := range []string{"", "5", "8", "12"} {
			t.Run(v+" without "+lacks, func(t *testing.T) {
				inTime(t, pve.Config{Version: v, Token: "ops@pve!agent=secret"}, func(t *testing.T, w *world) {
					w.vlanAware("vmbr0")
					for _, tag := range []string{"5", "7", "8", "12"} {
						if tag != lacks {
							w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/sdn/zones/localnetwork/vmbr0/" + tag}, "users": {"ops@pve"}, "roles": {"PVESDNUser"}})
						}
					}
					w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/sdn"}, "users": {"ops@pve"}, "roles": {"NoAccess"}})
					w.Node("web-1", func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", VLAN: 5, Trunks: []string{"7-8", "12"}}} })
					w.ct("cache", func(c *guest.CT) {
						c.NICs = []guest.CTNIC{{Name: "lan", VLAN: 5, Trunks: []string{"7", "8", "12"}}}
					})
					failed := w.Run(w.Plan())
					if lacks == "" {
						require.Empty(t, failed)
						w.Converged()
						return
					}
					require.Len(t, failed, 2)
					for _, err := range failed {
						require.ErrorContains(t, err, "/sdn/zones/localnetwork/vmbr0/"+lacks)
					}
				})
			})
		}
	}
}

// TestIPv6OfSeededMachines: a machine with user_data gets its addresses by its own
// image, and an edit of them that comes too late is listed.
func TestIPv6OfSeededMachines(t *testing.T) {
	for edit, do := range map[string]func(*guest.NIC){
		"ip6": func(n *guest.NIC) { n.IP6 = "fd00::6/64" },
		"mtu": func(n *guest.NIC) { n.MTU = 1300 },
	} {
		t.Run(edit, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.Node("web-1", func(v *guest.VM) {
					v.Agent, v.UserData = false, "#cloud-config\n"
					v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.5/24", IP6: "fd00::5/64", Gateway6: "fd00::1", MTU: 1400}}
				})
				w.Apply()
				w.Converged()
				require.NotContains(t, w.Guest(10000).Config, "ipconfig0")
				require.Empty(t, w.Plan().Pending)
				do(&w.VM("web-1").NICs[0])
				w.Apply()
				w.Converged()
				require.Len(t, w.Plan().Pending, 1)
			})
		})
	}
}
