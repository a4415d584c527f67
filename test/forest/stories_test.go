package forest_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/test/forest"
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
func server(m *forest.Machine) string { return filepath.Join(m.Data, "data", daemon.Folder) }

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
func expireTomorrow(t *testing.T, m *forest.Machine) {
	t.Helper()
	name := filepath.Join(server(m), keys.CertFile)
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
		w := newWorld(t, func(o *forest.Options) { o.Env = map[string]string{"HOMESTAK_CONCURRENCY": fmt.Sprint(width)} })
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

// ST-11, on a child of a child: a tag and a VM that leave the files leave the host, and what nobody manages stays as it
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
		require.NotZero(t, w.vmid("inner", "leaf"), "somebody's guest is in it")
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

// ST-18, in a tree that runs, at both levels: a new signing key, a new certificate, and tokens that end. Nobody is cut off, nobody
// is started again, and what was good before is good only as long as it has to be.
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
			_, err := keys.Rotate(server(m), time.Now())
			require.NoError(t, err)
			becomes(child, "has a token of the new key", func() bool { return w.knows(child).Token != old })
			require.NoError(t, accepts(old), "in the overlap")
			_, err = keys.DropOld(server(m))
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
		minted, err := keys.Mint(server(w.Machine("inner")), "leaf", "plain", 2*time.Hour, time.Now())
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

// ST-19: the agent of the root is away for hours, and that of the child in the middle. All below go on with what was in force, put
// back what somebody changes, and say what is wrong. When it is back, all of them catch up.
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
				w.push(s, "a change that nobody below hears of")
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

		// A child with another name is a new one, and a removal of all that is in the old one, which nobody allowed.
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
