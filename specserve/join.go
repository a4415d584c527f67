package specserve

import (
	"crypto/hmac"
	"encoding/json"
	"net/http"
	"sort"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// joinEndpoint is the only one, beside that of the program, that a token for joining opens.
const joinEndpoint = "/join/" + identity

// maxJoin is the most that a request to join may have, in bytes.
const maxJoin = 4 << 10

// join lets a machine join as a host, once for each token. What a machine of that name had before ends.
func join(x *request) error {
	var asked wire.Join
	if err := json.NewDecoder(x.Body).Decode(&asked); err != nil {
		return unreadable(err)
	}
	if err := asked.Check(); err != nil {
		return &wire.Error{Code: wire.CodeSchema, Message: err.Error()}
	}
	hint := "mint one on the machine of the parent: homestak-gitops token mint " + x.identity + " --join"
	text := wire.Token(x.Header)
	switch {
	case text == "" && asked.Proof != "":
		return handOver(x, asked)
	case text == "" || len(x.Header.Values("Authorization")) > 1:
		return &wire.Error{Code: wire.CodeNoCredential, Message: "a token for joining is needed", Hint: hint}
	}
	x.shown.Kind = policy.Provisioning
	c, err := x.view.Keys.Verify(text, x.identity, x.now)
	switch {
	case err != nil:
		return err
	case !c.Join:
		return &wire.Error{Code: wire.CodeNotYours, Message: "the token is not for joining", Hint: hint}
	}
	n := x.view.node(x.identity)
	if n != nil && (!n.Child || n.Removed) || x.view.Catalog.Suspended(x.identity) != "" {
		return &wire.Error{Code: wire.CodeNotYours, Message: "the site has another node of this name", Hint: "name the host otherwise"}
	}
	if err := x.view.Book.Join(c, asked.Key, x.now); err != nil {
		return err
	}
	x.shown.Valid, x.shown.Identity = true, c.Node
	x.verified()
	token, err := firstToken(x, c.Number)
	if err != nil {
		return err
	}
	x.o.Log.Info("a machine joins", "identity", c.Node, "remote", x.RemoteAddr, "declared", n != nil)
	if n == nil {
		x.waitingHosts.note(c.Node, x.RemoteAddr, x.now)
	}
	return x.json(http.StatusOK, wire.NewJoined(c.Node, token, x.view.Pins, n == nil, x.agentSums()))
}

// firstToken is the first token of a host, for one use.
func firstToken(x *request, number int64) (string, error) {
	next := keys.Claims{Node: x.identity, Spec: keys.ForAgent, Issued: x.now.Unix(), Expires: x.now.Add(keys.TokenLifetime).Unix(), Number: number, Once: true}
	return x.view.Keys[0].MintToken(x.view.Book.Next(next))
}

// handOver lets a host join that the commit in force has below this agent, and that had another parent before. Both prove that
// they know the handover key of the host.
func handOver(x *request, asked wire.Join) error {
	var known [][]byte
	if n := x.view.node(x.identity); n != nil && n.Host && !n.Moved && !x.view.Book.Barred(x.identity) {
		site := x.view.Catalog.in.Site
		known = site.Secrets.HandoverKeys(site.Name, x.identity)
	}
	for _, key := range known {
		for _, text := range x.view.Pins {
			pin, err := wire.ParsePin(text)
			if err != nil || !hmac.Equal([]byte(wire.HandoverChild.Proof(key, x.identity, pin, asked.Key)), []byte(asked.Proof)) {
				continue
			}
			x.verified()
			token, err := firstToken(x, 0)
			if err != nil {
				return err
			}
			x.o.Log.Info("a host turns to this parent", "identity", x.identity, "remote", x.RemoteAddr)
			answer := wire.NewJoined(x.identity, token, x.view.Pins, false, x.agentSums())
			answer.Proof = wire.HandoverParent.Proof(key, x.identity, pin, asked.Key)
			return x.json(http.StatusOK, answer)
		}
	}
	return &wire.Error{Code: wire.CodeRefused, Message: "the proof is not that of a host below this parent", Hint: "wait until this parent has the commit that names it; else let the host join: homestak-gitops token mint " + x.identity + " --join"}
}

// WaitingHost is a machine that joined under a name that the site does not have.
type WaitingHost struct {
	Name  string    `json:"name"`
	From  string    `json:"from"` // its address
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"` // when it asked last
}

// The most machines that are remembered, and for how long after they asked last.
const (
	mostWaiting = 64
	waitsFor    = 24 * time.Hour
)

// waitingHosts are the machines that wait for a commit with their name. They ask again, so nothing is stored.
type waitingHosts struct {
	mutex sync.Mutex // requests come from many goroutines
	all   map[string]WaitingHost
}

func (w *waitingHosts) note(name, from string, now time.Time) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.drop(now)
	h, known := w.all[name]
	if !known && len(w.all) >= mostWaiting {
		return
	}
	if w.all == nil {
		w.all = map[string]WaitingHost{}
	}
	h.Name, h.From, h.Last = name, from, now.UTC()
	if !known {
		h.Since = h.Last
	}
	w.all[name] = h
}

// drop forgets those that did not ask for long. The caller has the mutex.
func (w *waitingHosts) drop(now time.Time) {
	for name, h := range w.all {
		if now.Sub(h.Last) > waitsFor {
			delete(w.all, name)
		}
	}
}

// Waiting lists the machines that wait for a commit with their name, by name.
func (s *Server) Waiting() []WaitingHost {
	v := s.view.Load()
	s.waitingHosts.mutex.Lock()
	defer s.waitingHosts.mutex.Unlock()
	s.waitingHosts.drop(s.o.Now())
	out := []WaitingHost{}
	for name, h := range s.waitingHosts.all {
		if v.node(name) != nil {
			delete(s.waitingHosts.all, name)
			continue
		}
		out = append(out, h)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}
