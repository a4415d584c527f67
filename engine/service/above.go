package service

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// parentFile is the file of a child for its parent, in its data folder.
const parentFile = "parent.json"

// openParent makes the uplink to the agent above, if the configuration names one.
func (s *Service) openParent() error {
	c := s.o.Config
	p := c.Parent
	if p == nil || p.URL == "" {
		return nil
	}
	given, err := wire.ParentByHand(c.Identity, strings.TrimRight(p.URL, "/"), p.TokenFile, p.Pins)
	if err != nil {
		return fmt.Errorf("parent of agent.hcl: %w", err)
	}
	s.above, err = client.OpenUplink(client.UplinkOptions{
		Given: given, File: filepath.Join(c.DataDir, parentFile), Agent: "homestak-gitops/" + s.o.Program, Every: min(p.ReportEvery, wire.MaxReportEvery), Log: s.o.Log,
		Dial: s.o.Network.Dial, Between: s.o.Pace,
		Report: func() ([]byte, error) { return json.Marshal(s.toParent()) }, Check: s.checkSoon, Wake: func(node string) { s.wake(node) },
		Tasks: s.tasks, Receipts: &receiptsUp{s: s},
	})
	return err
}

// toParent is the tree with how often the parent gets it: the parent takes an agent for lost after three times that.
func (s *Service) toParent() wire.Report {
	r := s.Tree()
	every := min(max(s.o.Config.Parent.ReportEvery, cmp.Or(s.o.Pace, client.ReportInterval)), wire.MaxReportEvery)
	r.Every = int(math.Ceil(every.Seconds()))
	return r
}

// transport returns the way to the repository: with the pins and the token of the parent, if it is the parent's;
// nil: as its own settings say.
func (s *Service) transport() http.RoundTripper {
	if s.above == nil || !strings.HasPrefix(s.o.Config.Repository.URL, strings.TrimRight(s.o.Config.Parent.URL, "/")+"/") {
		return nil
	}
	return s.above.Transport()
}

// given are the secrets that the parent gave, as site.given.
func (s *Service) given() (secrets *model.Secrets, awaits bool) {
	if s.above == nil {
		return nil, false
	}
	config := s.above.Config()
	if config == nil || config.Secrets == nil {
		return nil, config == nil
	}
	out := &model.Secrets{Values: map[string]map[string]string{}, Source: "the parent", Private: config.PrivateKeys, Above: true}
	for section, values := range config.Secrets {
		out.Values[section] = map[string]string{}
		for name, value := range values {
			out.Values[section][name] = ""
			if value != nil {
				out.Values[section][name] = *value
			}
		}
	}
	return out, false
}

// bundle is the last response of the parent about this agent; see agent.Options.
func (s *Service) bundle() *agent.Bundle {
	c := s.above.Config()
	if c == nil {
		return nil
	}
	return &agent.Bundle{Removed: c.Removed, Commit: c.Commit, Way: c.Way}
}

// parentStatus returns the state of the connection to the parent; nil if there is none.
func (s *Service) parentStatus() *agent.ParentStatus {
	if s.above == nil {
		return nil
	}
	is := s.above.State()
	out := &agent.ParentStatus{URL: is.URL}
	if !is.Reported.IsZero() {
		at := is.Reported.UTC()
		out.Reported = &at
	}
	if is.Err != nil {
		since := is.Since.UTC()
		out.Error, out.Failing = is.Err.Error(), &since
	}
	return out
}

// passes calls a function whenever a pass has ended.
func passes(ended func(*agent.PassStatus)) func(agent.Status) {
	var last *agent.PassStatus
	return func(s agent.Status) {
		if s.Last != nil && (last == nil || !s.Last.Ended.Equal(last.Ended)) {
			last = s.Last
			ended(last)
		}
	}
}

// turned calls a function whenever other checks fail than before.
func turned(changed func()) func(agent.Status) {
	var last []agent.CheckStatus
	same := func(a, b agent.CheckStatus) bool {
		return a.Address == b.Address && a.Check == b.Check && a.Since.Equal(b.Since)
	}
	return func(s agent.Status) {
		if now := s.FailingChecks(); !slices.EqualFunc(last, now, same) {
			last = now
			changed()
		}
	}
}

// way returns the chain of hosts down to this agent: father/inner; "" as long as the parent did not say it. A host is the first
// of its chain, whatever its parent.
func (s *Service) way(site *model.Site) string {
	me := s.o.Config.Identity
	if s.above == nil {
		return me
	}
	c := s.above.Config()
	switch {
	case c == nil:
		return ""
	case site.Hosts[me] != nil && site.Hosts[me].Parent != "":
		return me
	case c.Way != "":
		return c.Way + "/" + me
	default:
		return ""
	}
}

// next is the parent that a site gives this host, if it is another one than the agent has; see client.Uplink.
func (s *Service) next(site *model.Site) *client.Next {
	me, c := site.Hosts[s.o.Config.Identity], s.above.Config()
	if me == nil || c == nil || c.Parent == "" || me.Parent == "" || me.Parent == c.Parent {
		return nil
	}
	n := &client.Next{Server: serverOf(site, me.Parent), Keys: site.Secrets.HandoverKeys(site.Name, me.Name)}
	why := ""
	switch {
	case len(n.Keys) == 0:
		why = "the site has no ownership key, by which they could know each other"
	case n.Server == "":
		why = "the site does not say where its server is: set server in its host block"
	default:
		return n
	}
	s.o.Log.Warn("this host has another parent now, and has to join it by hand", "parent", me.Parent, "reason", why, "do", "homestak-gitops token mint "+me.Name+" --join, on the machine of the parent")
	return nil
}

// serverOf is the URL where hosts below reach the server of a host; "" where the site does not say it.
func serverOf(site *model.Site, host string) string {
	h := site.Hosts[host]
	if h == nil || h.Server == "" && h.Local {
		return ""
	}
	if h.Server != "" {
		return strings.TrimRight(h.Server, "/")
	}
	api, err := url.Parse(h.API)
	if err != nil {
		return ""
	}
	return "https://" + net.JoinHostPort(api.Hostname(), strings.TrimPrefix(standardListen, ":"))
}
