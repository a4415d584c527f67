package service

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/notify"
)

// notifiersFile stores open incidents and queued messages.
const notifiersFile = "notify.json"

// openNotifiers opens the notifiers of the site. Only an agent without a parent has any: its tree has all incidents.
func openNotifiers(s *Service) {
	if s.above != nil {
		return
	}
	var err error
	s.notifiers, err = notify.Open(notify.Options{
		File: filepath.Join(s.o.Config.DataDir, notifiersFile), Observe: func() notify.Snapshot { return snapshot(s) }, Log: s.o.Log, Pace: s.o.Pace, Web: s.o.Network.Web,
	})
	if err != nil {
		s.o.Log.Warn("the state of notifications is unknown, so some messages may be repeated", "error", err)
	}
}

// snapshot is what notifications are derived from.
func snapshot(s *Service) notify.Snapshot {
	out := notify.Snapshot{Mask: func(text string) string { return text }}
	s.carrier.mutex.Lock()
	site := s.carrier.desired.Site
	s.carrier.mutex.Unlock()
	if site == nil {
		return out
	}
	out.Mask = site.Secrets.Mask
	if out.Notifiers = site.Notify; len(site.Notify) == 0 {
		out.Notifiers = map[string]*model.Notify{}
		return out
	}
	all := s.StatusAndTree()
	out.Status, out.Tree, out.PageEnds = all.Status, all.Tree, s.o.Config.pageEnds()
	return out
}

// pageEnds is when the certificate of the page expires; zero if there is none, or it cannot be read.
func (c *Config) pageEnds() time.Time {
	var text []byte
	if c.pageAddress() != "" {
		text, _ = os.ReadFile(c.Web.CertificateFile) // the page reports why it cannot be read
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if leaf, err := x509.ParseCertificate(block.Bytes); err == nil {
			return leaf.NotAfter
		}
	}
	return time.Time{}
}

// wakeNotifiers has the notifiers check the tree soon.
func wakeNotifiers(s *Service) {
	if s.notifiers != nil {
		s.notifiers.Wake()
	}
}

// testNotify sends a test by a notifier of the site.
func testNotify(s *Service) func(ctx context.Context, name string) error {
	return func(ctx context.Context, name string) error {
		if s.notifiers == nil {
			return errors.New("this agent has a parent, and the agent without one sends notifications\nrun this on the machine of that one")
		}
		return s.notifiers.Test(ctx, name)
	}
}
