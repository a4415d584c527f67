package forest

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// guests are all guests of all machines, with what makes each the one that it is.
func (w *world) guests() map[string]string {
	out := map[string]string{}
	for _, m := range w.Machines() {
		for name, g := range m.Guests() {
			out[filepath.Base(m.Data)+"/"+name] = fmt.Sprint(g.VMID, " ", g.Config["smbios1"])
		}
	}
	return out
}

// writes counts the requests that changed something, over all hosts.
func (w *world) writes() (n int) {
	for _, m := range w.Machines() {
		n += m.Host.Snapshot().Writes
	}
	return n
}

// server is the folder of the keys of a machine's server.
func server(m *Machine) string { return filepath.Join(m.Data, "data", daemon.Folder) }

// known is what a child keeps of its parent.
type known struct {
	Pins  []string
	Token string
}

func (w *world) knows(child string) (k known) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.Machine(child).Data, "data", "parent.json"))
	require.NoError(w.t, err)
	require.NoError(w.t, json.Unmarshal(text, &k))
	return k
}

// expireTomorrow replaces the certificate of a server by one of the same key that is about to expire.
func expireTomorrow(t *testing.T, m *Machine) {
	t.Helper()
	name := filepath.Join(server(m), "server.pem")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	block, rest := pem.Decode(text)
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	private, _ := pem.Decode(rest)
	key, err := x509.ParsePKCS8PrivateKey(private.Bytes)
	require.NoError(t, err)
	leaf.SerialNumber, leaf.NotAfter = big.NewInt(1), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, &key.(*ecdsa.PrivateKey).PublicKey, key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name+".new", append(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: der}), rest...), 0o600))
	require.NoError(t, os.Rename(name+".new", name))
}

// ST-6, on a child: twenty VMs that nothing orders are made side by side, but never more at once than was agreed.
func TestST06PeersOnAChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers, width = 20, 5
		w := newWorld(t, func(o *Options) { o.Env = map[string]string{"HOMESTAK_CONCURRENCY": fmt.Sprint(width)} })
		defer w.end()
		s := newSite()
		for range peers {
			s.add("leaf")
		}
		w.push(s, "twenty")
		w.until(time.Hour, "the tree is there", w.converged)
		snap := w.Machine("leaf").Host.Snapshot()
		require.Equal(t, width, snap.PeakByType["qmcreate"], "so many at once, and no more")
		require.LessOrEqual(t, snap.PeakTasks, width)
		require.Len(t, w.Machine("leaf").Guests(), peers)
		require.Empty(t, w.broken)
	})
}

// ST-11, on a child of a child: a tag and a VM that leave the files leave the host, and an unmanaged guest stays as it
// was. It keeps the machine that it is in, too, and its parent says why.
func TestST11WithdrawalInAChildOfAChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		gone := s.add("leaf")
		w.push(s, "one more")
		w.until(10*time.Minute, "it is there", w.converged)
		leaf := w.Machine("leaf").Host
		leaf.Edit(func(e *pve.Edit) {
			e.Add(pve.Guest{VMID: 900, Kind: "qemu", Config: map[string]string{"name": "scratch", "memory": "512", "tags": "mine"}})
		})
		scratch, _ := leaf.Snapshot().Guest(900)
		kept := w.guests()
		delete(kept, filepath.Base(w.Machine("leaf").Data)+"/"+gone)

		delete(s.vms, gone)
		delete(s.on, gone)
		files := s.files()
		files["tree.hcl"] = strings.Replace(files["tree.hcl"], "    tags = [\"rev-1\"]\n    parent = node.leaf\n", "    parent = node.leaf\n", 1)
		w.pushFiles(s, files, "a VM leaves, and a tag\n\nAllow-Deletes: 1")
		w.until(10*time.Minute, "both left", func() bool {
			return w.vmid("leaf", gone) == 0 && !strings.Contains(w.Machine("leaf").Guests()["vm-3"].Config["tags"], "rev-1")
		})
		require.Equal(t, kept, w.guests())

		s.leaf = false
		w.push(s, "leaf leaves\n\nAllow-Deletes: 5")
		w.live(20 * time.Minute)
		require.NotZero(t, w.vmid("inner", "leaf"), "an unmanaged guest is in it")
		require.Zero(t, w.vmid("leaf", "vm-3"))
		now, there := leaf.Snapshot().Guest(900)
		require.True(t, there)
		require.Equal(t, scratch, now)
		require.Contains(t, w.says("inner"), "not deleted until nothing is left in it")
		require.Contains(t, w.says("inner"), "homestak-gitops plan on leaf lists unmanaged guests")
		require.Contains(t, w.says("leaf"), "leaf is not empty: 1 guest on it is not managed")
		leaf.Edit(func(e *pve.Edit) { e.Delete(900) })
		w.until(10*time.Minute, "leaf goes when that is gone", w.converged)
		require.Empty(t, w.broken)
	})
}

// ST-18, in a tree that runs, at both levels: a new signing key, a new certificate, and tokens that end. No agent is cut off or
// restarted, and the old key, certificate and tokens are valid only as long as they have to be.
func TestST18RotationInATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		agents := map[string]any{}
		for _, m := range w.Machines() {
			agents[m.Name] = m.Agent()
		}
		guests, writes := w.guests(), w.writes()
		// becomes lets time pass until something holds; the link never fails meanwhile.
		becomes := func(child, what string, holds func() bool) {
			t.Helper()
			w.until(5*time.Minute, child+": "+what, func() bool {
				require.Empty(t, w.status(child).Parent.Error, what)
				require.Empty(t, w.status(child).Repository.Error, what)
				return holds()
			})
		}
		for child, above := range map[string]string{"inner": "father", "leaf": "inner"} {
			m := w.Machine(above)
			pins := func() []string { return m.Agent().Server().State().Pins }
			accepts := func(token string) error { return m.Agent().Server().Accepts(child, token) }

			old := w.knows(child).Token
			_, err := keys.Folder(server(m)).Rotate(time.Now())
			require.NoError(t, err)
			becomes(child, "has a token of the new key", func() bool { return w.knows(child).Token != old })
			require.NoError(t, accepts(old), "in the overlap")
			_, err = keys.Folder(server(m)).DropOld()
			require.NoError(t, err)
			becomes(child, "the old token ends", func() bool { return accepts(old) != nil })
			require.NoError(t, accepts(w.knows(child).Token))

			before := pins()
			require.Equal(t, before, w.knows(child).Pins)
			expireTomorrow(t, m)
			becomes(child, "knows the key after the next", func() bool { return pins()[0] != before[0] && w.knows(child).Pins[1] != before[1] })
			require.Equal(t, before[1], pins()[0], "it was announced")
			require.Equal(t, pins(), w.knows(child).Pins)
		}
		require.Equal(t, guests, w.guests())
		require.Equal(t, writes, w.writes())
		for name, agent := range agents {
			require.Same(t, agent, w.Machine(name).Agent(), name)
		}
		s.vms["vm-3"]++
		w.push(s, "a change")
		w.until(10*time.Minute, "the tree follows", w.converged)

		// A token for two hours, which an administrator gave, is renewed in time.
		leaf := w.Machine("leaf")
		leaf.Kill()
		minted, err := keys.Folder(server(w.Machine("inner"))).Mint("leaf", "plain", 2*time.Hour, time.Now())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(leaf.Data, "token"), []byte(minted.Token), 0o600))
		require.NoError(t, leaf.Start())
		w.live(time.Minute)
		first := w.knows("leaf").Token
		require.NotEqual(t, minted.Token, first, "it is good for one use")
		w.rest(3 * time.Hour)
		require.NotEqual(t, first, w.knows("leaf").Token)
		require.Empty(t, w.status("leaf").Parent.Error)
		require.True(t, w.converged(), w.why())
		require.Empty(t, w.broken)
	})
}

// ST-19: the agent of the root is away for hours, and that of the child in the middle. All below continue with the commit in force,
// revert changes by hand, and report the outage. When it is back, all of them catch up.
func TestST19ParentAwayForHours(t *testing.T) {
	for away, below := range map[string][]string{"father": {"inner", "leaf"}, "inner": {"leaf"}} {
		t.Run(away, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s := grown(t, nil)
				defer w.end()
				before, guests := w.head, w.guests()
				w.kill(w.Machine(away), 24*time.Hour)
				s.vms["vm-1"]++
				s.vms["vm-3"]++
				gone := s.add("leaf")
				w.push(s, "a change that does not reach the hosts below")
				w.rest(4 * time.Hour)
				for _, name := range below {
					require.Equal(t, before, w.status(name).InForce.ID, name)
					require.Equal(t, before, w.status(name).Converged.ID, name)
				}
				require.Equal(t, guests, w.guests())
				w.deletes("leaf", "vm-3")
				w.live(10 * time.Minute)
				require.NotZero(t, w.vmid("leaf", "vm-3"), "it is made again")
				require.Zero(t, w.vmid("leaf", gone))
				require.Contains(t, w.says(below[0]), "connection refused")
				if away == "inner" {
					require.False(t, w.Machine("father").Agent().Tree().Ready)
					require.Contains(t, w.says("father"), "stale")
					require.Equal(t, w.head, w.status("father").InForce.ID, "the root has the commit")
					require.Contains(t, w.Machine("father").Guests()["vm-1"].Config["tags"], "rev-2")
				}
				clear(w.down)
				w.until(15*time.Minute, "all catch up", w.converged)
				delete(guests, filepath.Base(w.Machine("leaf").Data)+"/vm-3") // it was deleted by hand
				for name, is := range guests {
					require.Equal(t, is, w.guests()[name], name)
				}
				require.Empty(t, w.broken)
			})
		})
	}
}

// ST-21: the data folder of the root, of the child in the middle, of the last one: the agent makes new keys, its children are given
// them, and all guests are the same, with no request that changes any.
func TestST21LostDataFolderInATree(t *testing.T) {
	for _, lost := range []string{"father", "inner", "leaf"} {
		t.Run(lost, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s := grown(t, nil)
				defer w.end()
				guests, writes, m := w.guests(), w.writes(), w.Machine(lost)
				pins := m.Agent().Server().State().Pins
				w.loseData(m)
				w.until(15*time.Minute, "the tree is as before", w.converged)
				w.live(5 * time.Minute)
				now := m.Agent().Server().State().Pins
				for _, pin := range now {
					require.NotContains(t, pins, pin, "the key went with the folder")
				}
				for _, child := range w.Machines() {
					if child.Parent == m {
						require.Equal(t, now, w.knows(child.Name).Pins)
					}
				}
				require.True(t, w.Machine("father").Agent().Tree().Ready, w.why())
				require.Equal(t, guests, w.guests())
				require.Equal(t, writes, w.writes())

				for _, vm := range []string{"vm-1", "vm-2", "vm-3"} {
					s.vms[vm]++
				}
				w.push(s, "a change")
				w.until(10*time.Minute, "all are managed as before", w.converged)
				require.Equal(t, guests, w.guests())
				require.Empty(t, w.broken)
			})
		})
	}
}

// ST-22: an agent that is not the one that it says, or whose host is not in the site any more, converges nothing, and says so;
// what is below it stays as it is.
func TestST22IdentityGoneInATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		guests, writes := w.guests(), w.writes()
		same := func(why string) {
			t.Helper()
			require.Equal(t, guests, w.guests(), why)
			require.Equal(t, writes, w.writes(), why)
			require.Empty(t, w.broken, why)
		}
		inner := w.Machine("inner")
		typed := func(identity string, lost bool, says ...string) {
			t.Helper()
			inner.Kill()
			inner.Typo = identity
			if lost {
				require.NoError(t, inner.Reinstall(true)) // the token that it was given is used up
			}
			require.NoError(t, inner.Start())
			w.live(20 * time.Minute)
			same("identity " + identity)
			said := w.says("inner")
			for _, text := range append(says, "E302", "the credentials are not for this identity", "fix the identity in agent.hcl") {
				require.Contains(t, said, text, identity)
			}
			if !lost { // else its parent waits for its first report
				require.Contains(t, w.says("father"), "stale", "its parent shows that it does not report")
			}
			require.Equal(t, w.head, w.status("leaf").Converged.ID, "what is below it does not mind")
		}
		typed("iner", false, "commit "+w.head[:8]+" does not have iner", "nothing shows that it ever had this name")
		// The name of another one of the site is worse, since that has nodes of its own.
		typed("leaf", false, "no parent confirmed that this is leaf")
		typed("father", false, "no parent confirmed that this is father")
		typed("leaf", true, "no parent confirmed that this is leaf")
		inner.Kill()
		inner.Typo = ""
		w.Machine("leaf").Kill()
		require.NoError(t, w.Machine("leaf").Reinstall(false)) // the keys of inner went with its data folder
		w.until(10*time.Minute, "it is itself again", w.converged)
		same("it is itself again")

		// The host of the root gets another name, and so no agent: all keep what they have.
		before, files := w.head, s.files()
		files["site.hcl"] = strings.ReplaceAll(files["site.hcl"], `host "father"`, `host "mother"`)
		files["tree.hcl"] = strings.ReplaceAll(files["tree.hcl"], "host.father", "host.mother")
		w.pushFiles(s, files, "another name of the host")
		w.live(30 * time.Minute)
		same("the host has another name")
		for _, text := range []string{"father is not a host of site home", `did you mean "mother"?`, "nothing is converged", "declare the host again, or fix the identity"} {
			require.Contains(t, w.says("father"), text)
		}
		for _, child := range []string{"inner", "leaf"} {
			require.Equal(t, before, w.status(child).InForce.ID)
			require.True(t, w.status(child).Healthy)
		}

		// A child with another name is a new one, and the old one with all that is in it is a removal, which no trailer allowed.
		files = s.files()
		files["tree.hcl"] = strings.ReplaceAll(strings.ReplaceAll(files["tree.hcl"], `node "inner"`, `node "outer"`), "node.inner", "node.outer")
		w.pushFiles(s, files, "inner is outer now")
		w.live(30 * time.Minute)
		same("a child has another name")
		require.Equal(t, before, w.status("father").InForce.ID)
		require.Contains(t, w.says("father"), "the site loses 4 of 5 guests, 0 of them by this plan")
		require.Contains(t, w.says("father"), `a commit with the trailer "Allow-Deletes: 4"`)
		w.push(s, "as before")
		w.until(10*time.Minute, "the tree is as before", w.converged)
		same("all is as before")
	})
}

// grown is a tree of three levels that is as declared, with a VM on each machine: vm-1, vm-2 and vm-3.
func grown(t *testing.T, change func(*Options)) (*world, *site) {
	t.Helper()
	w := newWorld(t, change)
	s := newSite()
	for _, on := range []string{"father", "inner", "leaf"} {
		s.add(on)
	}
	w.push(s, "begin")
	w.until(time.Hour, "the tree is there", w.converged)
	w.live(5 * time.Minute)
	return w, s
}

// vmid is that of a guest on a machine; 0 if it is not there.
func (w *world) vmid(machine, guest string) int {
	if m := w.Machine(machine); m != nil {
		return m.Guests()[guest].VMID
	}
	return 0
}

// status of a machine as text, for what it says to people.
func (w *world) says(machine string) string {
	w.t.Helper()
	text, err := json.Marshal(w.Machine(machine).Agent().StatusAndTree())
	require.NoError(w.t, err)
	return strings.NewReplacer(`\n`, "\n", `\"`, `"`).Replace(string(text))
}

func (w *world) deletes(machine, guest string) {
	id := w.vmid(machine, guest)
	w.Machine(machine).Host.Edit(func(e *pve.Edit) { e.Delete(id) })
}

// A child that is cut off for hours keeps what was in force, for its own children as well. Its parent shows it as stale and
// leaves it alone, also when a commit takes it out of the site. When the link is back it catches up.
func TestAPartitionForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		before := w.head
		inner := w.vmid("father", "inner")
		w.Network.Cut("inner", true)

		s.vms["vm-3"]++
		s.add("inner")
		w.push(s, "more for inner and leaf")
		w.live(2 * time.Hour)
		require.Equal(t, before, w.status("inner").InForce.ID)
		require.Equal(t, before, w.status("leaf").InForce.ID)
		w.deletes("inner", "vm-2")
		w.deletes("leaf", "vm-3")
		w.live(10 * time.Minute)
		require.NotZero(t, w.vmid("inner", "vm-2"), "it is made again")
		require.NotZero(t, w.vmid("leaf", "vm-3"), "also by the child of the child")
		require.Contains(t, w.says("inner"), "no route to host")
		require.Empty(t, w.status("leaf").Parent.Error, "leaf has its parent")
		tree := w.Machine("father").Agent().Tree()
		require.False(t, tree.Ready)
		require.Contains(t, w.says("father"), "stale")
		w.Machine("inner").Kill()
		w.live(10 * time.Minute) // it starts again from what it keeps
		require.Equal(t, before, w.status("inner").Converged.ID)

		// A commit takes it out of the site: nothing is removed as long as it cannot say that it is empty.
		s.inner = false
		w.push(s, "inner leaves\n\nAllow-Deletes: 10")
		w.live(3 * time.Hour)
		require.Equal(t, inner, w.vmid("father", "inner"))
		require.NotZero(t, w.vmid("leaf", "vm-3"))
		require.Contains(t, w.says("father"), "if inner does not report any more, start it and check its agent; if it is lost, push a commit with the trailer \"Allow-Orphans: inner\"")
		s.inner = true
		w.push(s, "inner stays")
		w.live(time.Hour)

		w.Network.Cut("inner", false)
		w.until(20*time.Minute, "the tree catches up", w.converged)
		require.Equal(t, inner, w.vmid("father", "inner"), "it is the same machine as before")

		// The same once more, and this time it is meant.
		w.Network.Cut("inner", true)
		s.inner = false
		w.push(s, "inner leaves again\n\nAllow-Deletes: 10")
		w.live(2 * time.Hour)
		require.Equal(t, inner, w.vmid("father", "inner"))
		w.Network.Cut("inner", false)
		w.until(20*time.Minute, "inner goes, and all that is in it first", w.converged)
		require.Empty(t, w.broken)
	})
}

// The token of a child may be from a clock that goes ahead, or have expired while the child was off for a week. One that
// expired long ago is refused, and both say what to do.
func TestAChildWithATokenOfAnotherTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		give := func(life time.Duration, at time.Time) {
			inner := w.Machine("inner")
			inner.Kill()
			minted, err := keys.Folder(filepath.Join(w.Machine("father").Data, "data", daemon.Folder)).Mint("inner", "plain", life, at)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(inner.Data, "token"), []byte(minted.Token), 0o600))
			require.NoError(t, inner.Start())
		}
		give(time.Hour, time.Now().Add(30*time.Minute))
		s.vms["vm-2"]++
		w.push(s, "a change")
		w.until(10*time.Minute, "a token from the future is good", w.converged)

		give(time.Hour, time.Now().AddDate(0, 0, -7))
		s.vms["vm-2"]++
		w.push(s, "after a week")
		w.until(10*time.Minute, "its newest token is replaced", w.converged)

		give(time.Hour, time.Now().AddDate(0, 0, -31))
		s.vms["vm-2"]++
		w.push(s, "another change")
		w.live(10 * time.Minute)
		require.NotEqual(t, w.head, w.status("inner").InForce.ID)
		parent := w.status("inner").Parent.Error
		require.Contains(t, parent, "E303")
		require.Contains(t, parent, "homestak-gitops token mint", "it names the next step")
		give(time.Hour, time.Now())
		w.until(10*time.Minute, "with another token it catches up", w.converged)
	})
}

// If all clocks go on by a year, since nothing ran or no clock was right, the tree continues although no token is valid by its
// date.
func TestS7ClockOfATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		expires := func() time.Time {
			i, err := keys.Inspect(w.knows("inner").Token)
			require.NoError(t, err)
			return *i.Expires
		}
		for _, m := range w.Machines() {
			m.Kill()
		}
		<-time.After(365 * 24 * time.Hour)
		require.True(t, expires().Before(time.Now().Add(-300*24*time.Hour)))
		for _, m := range w.Machines() {
			require.NoError(t, m.Start())
		}
		s.vms["vm-2"]++
		w.push(s, "a year later")
		w.until(20*time.Minute, "the tree goes on", w.converged)
		require.True(t, expires().After(time.Now()))
		require.Empty(t, w.broken)
	})
}

// A parent that comes back from an old backup of its repository does not take its child back, and the child says why.
func TestAParentFromAnOldBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		old, was := w.head, s.copy()
		s.vms["vm-2"]++
		s.add("inner")
		newer := w.push(s, "a change")
		w.until(10*time.Minute, "the tree has it", w.converged)
		w.repo.Reset(old)
		w.live(30 * time.Minute)
		require.Equal(t, old, w.status("father").InForce.ID, "the git server decides about the host")
		require.Equal(t, newer, w.status("inner").InForce.ID)
		require.NotZero(t, w.vmid("inner", "vm-4"))
		require.Contains(t, w.says("inner"), fmt.Sprintf("commit %.8s is older than %.8s", old, newer))
		require.Contains(t, w.says("inner"), "let it fetch its repository; if the older state is meant, push it as a new commit")
		w.push(was, "the older state is meant\n\nAllow-Deletes: 2")
		w.until(10*time.Minute, "the tree is at the older state", w.converged)
		require.Zero(t, w.vmid("inner", "vm-4"))
	})
}

// copyFolder copies files with their modes, as a backup does.
func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, _ := filepath.Rel(from, name)
		info, err := d.Info()
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rest), info.Mode())
		case !d.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rest), data, info.Mode())
	}))
}

// A child whose data folder is from an old backup has an old token and an old commit. It fetches the newest one, and what
// was in force since does not count less.
func TestAChildFromAnOldBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		inner := w.Machine("inner")
		data, backup := filepath.Join(inner.Data, "data"), filepath.Join(inner.Data, "backup")
		inner.Kill()
		copyFolder(t, data, backup)
		w.live(time.Minute)
		s.vms["vm-2"]++
		gone := s.add("inner")
		w.push(s, "a change")
		w.until(10*time.Minute, "the tree has it", w.converged)
		delete(s.vms, gone)
		delete(s.on, gone)
		newest := w.push(s, "one less")
		w.until(10*time.Minute, "the tree has it", w.converged)

		inner.Kill()
		require.NoError(t, os.RemoveAll(data))
		copyFolder(t, backup, data)
		id := w.vmid("inner", "vm-2")
		w.live(10 * time.Minute)
		require.Equal(t, newest, w.status("inner").Converged.ID)
		require.True(t, w.converged(), w.why())
		require.Equal(t, id, w.vmid("inner", "vm-2"))
		require.Empty(t, w.broken)
	})
}

// A child whose data folder is lost is given a token again, and goes on. If it left the site meanwhile it removes nothing,
// since nothing shows that it ever was in it: both it and its parent say how to let it go.
func TestAChildThatLostItsData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		guests := func() []int { return []int{w.vmid("inner", "vm-2"), w.vmid("inner", "leaf"), w.vmid("leaf", "vm-3")} }
		ids := guests()
		w.loseData(w.Machine("inner"))
		w.until(20*time.Minute, "the tree is as before", w.converged)
		require.Equal(t, ids, guests(), "no guest is made again")

		w.Network.Cut("leaf", true)
		s.leaf = false
		w.push(s, "leaf leaves\n\nAllow-Deletes: 5")
		w.live(10 * time.Minute)
		w.Network.Cut("leaf", false)
		w.loseData(w.Machine("leaf"))
		w.live(30 * time.Minute)
		require.Equal(t, ids[2], w.vmid("leaf", "vm-3"))
		require.Contains(t, w.says("leaf"), "no commit is known that had it and was in force here, so nothing is removed: the guests of this site could not be seen: the key")
		require.Contains(t, w.says("leaf"), "let it go at its parent with --allow-orphans leaf")
		require.Contains(t, w.says("inner"), `push a commit with the trailer "Allow-Orphans: leaf"`)
		w.allowed["leaf"] = true
		w.pushFiles(s, map[string]string{"note.txt": "x"}, "let it go\n\nAllow-Orphans: leaf\nAllow-Deletes: 5")
		w.until(20*time.Minute, "it goes with what is in it", w.converged)
		require.Empty(t, w.broken)
	})
}

// A guest that moves between manifests, with the machine that holds it, stays as it is. One that gets another parent is made there
// and removed here. A machine with another name is another machine: the new one comes, and the old one goes child first.
func TestNodesMoveAndGetOtherNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		guests := func() []int { return []int{w.vmid("father", "inner"), w.vmid("inner", "vm-2"), w.vmid("leaf", "vm-3")} }
		ids := guests()
		files := s.files()
		files["tree.hcl"] = strings.Replace(files["tree.hcl"], `manifest "tree"`, `manifest "forest"`, 1)
		w.pushFiles(s, files, "another manifest")
		w.until(10*time.Minute, "it is the same tree", w.converged)
		require.Equal(t, ids, guests())

		s.on["vm-3"] = "inner"
		s.add("leaf")
		w.push(s, "vm-3 gets another parent\n\nAllow-Deletes: 2")
		w.until(20*time.Minute, "it is on inner, and not on leaf", w.converged)
		require.NotZero(t, w.vmid("inner", "vm-3"))
		require.Zero(t, w.vmid("leaf", "vm-3"))

		files = s.files()
		files["tree.hcl"] = strings.ReplaceAll(strings.ReplaceAll(files["tree.hcl"], `node "inner"`, `node "outer"`), "node.inner", "node.outer")
		w.pushFiles(s, files, "inner is outer now\n\nAllow-Deletes: 10")
		w.until(time.Hour, "outer is there, and inner is not", func() bool {
			outer, leaf := w.Machine("outer"), w.Machine("leaf")
			return outer != nil && leaf != nil && leaf.Parent == outer && slices.Equal(w.Machine("father").Managed(), []string{"outer", "vm-1"}) &&
				slices.Equal(outer.Managed(), s.below("inner")) && slices.Equal(leaf.Managed(), s.below("leaf"))
		})
		require.Nil(t, w.Machine("inner"))
		require.Empty(t, w.broken)
	})
}

// A machine that gets another parent is made there, with all nodes that it has, and goes child first where it was. As long as
// what is left of it does not answer, nothing is removed there; the new one does not wait for that.
func TestAMachineMovesToAnotherParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		father, inner, old := w.Machine("father"), w.Machine("inner"), w.Machine("leaf")
		kept := old.Guests()["vm-3"]

		w.Network.Cut(old.Data, true)
		s.leafOn = "father"
		w.push(s, "leaf moves to father\n\nAllow-Deletes: 5")
		w.live(30 * time.Minute)
		moved := w.On(father, "leaf")
		require.NotNil(t, moved)
		require.Equal(t, []string{"vm-3"}, moved.Managed(), "the new one has its nodes")
		require.True(t, moved.Agent().Status().Healthy)
		require.Same(t, old, w.On(inner, "leaf"), "the old one cannot say that it is empty")
		require.Equal(t, kept, old.Guests()["vm-3"])
		require.Contains(t, w.says("inner"), "not deleted until nothing is left in it")
		require.Contains(t, w.says("inner"), `push a commit with the trailer "Allow-Orphans: leaf"`)
		require.Equal(t, []string{"leaf", "vm-2"}, inner.Managed())

		w.Network.Cut(old.Data, false)
		w.until(20*time.Minute, "nothing is left of it on inner", w.converged)
		require.Same(t, moved, w.Machine("leaf"))
		require.NotEqual(t, kept.Config["smbios1"], moved.Guests()["vm-3"].Config["smbios1"], "it was made there")
		require.Empty(t, w.broken)

		// It moves back, and before the one on father could empty itself that is taken back: it stays as it is.
		before := w.guests()
		w.Network.Cut(moved.Data, true)
		s.leafOn = "inner"
		w.push(s, "leaf moves to inner\n\nAllow-Deletes: 5")
		w.live(10 * time.Minute)
		require.Equal(t, []string{"vm-3"}, w.On(inner, "leaf").Managed())
		s.leafOn = "father"
		w.push(s, "leaf stays on father\n\nAllow-Deletes: 5")
		w.live(time.Minute)
		w.Network.Cut(moved.Data, false)
		w.until(time.Hour, "it is on father as before", w.converged)
		require.Equal(t, before, w.guests())
		require.Empty(t, w.broken)
	})
}

// Each child signs with the key that is derived for it, which its parent gives it again after it lost its data. The key of the
// site is nowhere but in the secrets of the host, and the keys of a machine are neither on those below nor in a log or report.
func TestS1KeysInATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		site, found := hcl.ParseSecrets("secrets.yaml", []byte(secrets), nil)
		require.Empty(t, found)
		w, _ := grown(t, nil)
		defer w.end()
		trust := func(machine, as string) (all []owner.Trust) {
			id := owner.Identity{Site: "home", Owner: machine, Host: machine, Keys: func(string) [][]byte { return site.OwnershipKeys("home", as) }}
			for _, g := range w.Machine(machine).Guests() {
				v := id.Check(api.GuestConfig{Now: g.Config}, api.GuestRef{Node: g.Node, VMID: g.VMID})
				require.True(t, v.Found)
				all = append(all, v.Tag.Trust)
			}
			require.NotEmpty(t, all)
			return all
		}
		proven := func() {
			for _, machine := range []string{"father", "inner", "leaf"} {
				for _, as := range []string{"father", "inner", "leaf"} {
					for _, is := range trust(machine, as) {
						require.Equal(t, machine == as, is == owner.Proven, "guests of %s by the key of %s", machine, as)
					}
				}
			}
		}
		proven()
		ofAll := func() []int { return []int{w.vmid("inner", "vm-2"), w.vmid("inner", "leaf"), w.vmid("leaf", "vm-3")} }
		ids := ofAll()
		w.loseData(w.Machine("inner"))
		w.until(20*time.Minute, "the tree is as before", w.converged)
		require.Equal(t, ids, ofAll())
		proven()

		key := func(owner string) string { return hex.EncodeToString(site.OwnershipKeys("home", owner)[0]) }
		canaries := map[string][]string{
			"father": {}, // it has the key of the site
			"inner":  {site.Values["auth"][model.OwnershipKey], key("father")},
			"leaf":   {site.Values["auth"][model.OwnershipKey], key("father"), key("inner")},
		}
		for machine, keys := range canaries {
			held := 0
			require.NoError(t, filepath.WalkDir(w.Machine(machine).Data, func(name string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				data, err := os.ReadFile(name)
				held++
				for _, canary := range keys {
					require.NotContains(t, string(data), canary, name)
				}
				return err
			}))
			require.NotZero(t, held)
			for _, canary := range append(keys, site.Values["auth"][model.OwnershipKey], key("father"), key("inner"), key("leaf")) {
				require.NotContains(t, w.says(machine), canary)
				require.NotContains(t, w.log.String(), canary)
			}
		}
		require.Empty(t, w.broken)
	})
}

// requests counts what agents ask their hosts.
type requests struct {
	mu   sync.Mutex
	seen []string
}

func (q *requests) note(_ string, r *http.Request) (int, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seen = append(q.seen, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api2/json"))
	return 0, false
}

// take gives them, and begins again.
func (q *requests) take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.seen
	q.seen = nil
	return out
}

// An agent on a node reverts a change by hand there within three seconds. A pass that finds nothing to do asks the API at most
// twice, however many guests there are. If the guest alone is not enough to decide, the pass is about the whole host, and full
// checks are made as before.
func TestAChangeByHandIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked requests
		w := newWorld(t, func(o *Options) {
			o.Watch, o.Fault = true, asked.note
			o.Env = map[string]string{"HOMESTAK_DRIFT_EVERY": "1h", "HOMESTAK_REPOSITORY_POLL": "24h"}
		})
		defer w.end()
		const guests = 40
		s := newSite()
		s.inner = false
		for range guests {
			s.add("father")
		}
		w.push(s, "begin")
		w.until(10*time.Minute, "the guests are there", w.converged)
		w.live(5 * time.Minute)
		father := w.Machine("father")
		guest := func(n int) pve.Guest { return father.Guests()[fmt.Sprintf("vm-%d", n)] }
		byHand := func(n int, key, value string) {
			id := guest(n).VMID
			asked.take()
			father.Host.Edit(func(e *pve.Edit) { e.Set(id, key, value) })
		}
		within := func(most time.Duration, what string, holds func() bool) {
			t.Helper()
			began := time.Now()
			for !holds() {
				time.Sleep(100 * time.Millisecond)
				require.Less(t, time.Since(began), most+100*time.Millisecond, "%s\n%s", what, w.why())
			}
		}
		reads := func(list []string) (n int) {
			for _, line := range list {
				if strings.HasPrefix(line, "GET ") {
					n++
				}
			}
			return n
		}

		for n := 1; n <= guests; n += 3 { // one after the other: no pass keeps the next one from being made at once
			byHand(n, "tags", "homestak;mine")
			within(3*time.Second, "the change is taken back", func() bool { return strings.Contains(guest(n).Config["tags"], "rev-1") })
		}
		w.live(time.Minute)

		byHand(5, "tags", "homestak;mine")
		within(3*time.Second, "the change is taken back", func() bool { return strings.Contains(guest(5).Config["tags"], "rev-1") })
		w.live(time.Minute)
		list := asked.take()
		require.LessOrEqual(t, reads(list), 8, "two for the change, two for its author, some for the write, two to see whether it was changed again:\n%s", strings.Join(list, "\n"))
		for _, line := range list {
			require.True(t, strings.Contains(line, fmt.Sprintf("/qemu/%d/", guest(5).VMID)) || line == "GET /nodes/father/tasks" || line == "GET /cluster/log", "nothing is asked of other guests: %s", line)
		}
		t.Log(strings.Join(list, "\n"))

		// Settings that the files leave open may be changed. Finding that out takes two requests.
		byHand(7, "vga", "qxl")
		w.live(time.Minute)
		require.Equal(t, []string{
			fmt.Sprintf("GET /nodes/father/qemu/%d/pending", guest(7).VMID), fmt.Sprintf("GET /nodes/father/qemu/%d/status/current", guest(7).VMID),
		}, asked.take())

		// A guest that was stopped is started, one that was locked or deleted is a matter of the whole host.
		id := guest(9).VMID
		father.Host.Edit(func(e *pve.Edit) { e.Stop(id) })
		within(5*time.Second, "it runs again", func() bool { return guest(9).Running })
		w.live(time.Minute)
		list = asked.take()
		require.Less(t, reads(list), 3*guests, "it is one pass about the whole host, since a start depends on more than the guest, and two requests after it")
		byHand(11, "lock", "backup")
		w.live(10 * time.Second)
		require.Greater(t, reads(asked.take()), guests)
		byHand(11, "lock", "")
		id = guest(13).VMID
		father.Host.Edit(func(e *pve.Edit) { e.Delete(id) })
		w.until(time.Minute, "it is made again", func() bool { return guest(13).Running })
		w.live(2 * time.Minute)

		// The next full check comes when it is due, and sees all of them.
		asked.take()
		w.live(time.Hour)
		list = asked.take()
		require.GreaterOrEqual(t, reads(list), guests)
		require.Less(t, reads(list), 2*guests+20, "one full check in an hour")
	})
}
