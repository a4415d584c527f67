package model

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Check is a check of a node. Exactly one of HTTP, TCP, SSH, Agent
// and Command is set. Package engine/health tries it.
type Check struct {
	Name     string        `hcl:"name,label"`
	HTTP     string        `hcl:"http,optional" doc:"URL that must answer a GET with a status from 200 to 299. Without a host (:8080/health, https://:8443/), or with localhost, it is the guest's, and its certificate is not verified."`
	TCP      string        `hcl:"tcp,optional" doc:"Port of the guest, or address:port, that must accept a connection."`
	SSH      bool          `hcl:"ssh,optional" doc:"An SSH server must answer on port 22, and accept vm_user if the guest has the public half of the key in ssh of the host."`
	Agent    bool          `hcl:"agent,optional" doc:"The guest agent must answer; not for containers."`
	Command  string        `hcl:"command,optional" doc:"Command for /bin/sh that must exit 0. The guest agent runs it as root, perhaps more than once; not for containers. On a host, its agent runs it as its user."`
	Timeout  time.Duration `hcl:"timeout,optional" doc:"Time limit."`
	Interval time.Duration `hcl:"interval,optional" doc:"Pause between tries."`
	Expect   string        `hcl:"expect,optional" doc:"http: a status of three digits, or text in the body; tcp: text that the server sends first; command: text in the output."`
	Every    string        `hcl:"every,optional" doc:"Time between runs by the agent, at least 10s (default: 1m), or off."`

	Report    bool       // the node itself has to report that it is ready; no block says so
	At        diag.Range // of the block
	Sensitive bool       // made from a secret: what it sees is not shown
}

// The limits of Check.Every.
const (
	checkEvery      = time.Minute // unless it is set
	checkEveryLeast = 10 * time.Second
)

// Period is the time between two runs of a check while nothing changes; 0: it is run only at changes.
func (c *Check) Period() time.Duration {
	d, err := CheckPeriod(c.Every)
	if err != nil {
		return checkEvery // the loader refuses it
	}
	return d
}

// CheckPeriod reads the attribute every.
func CheckPeriod(s string) (time.Duration, error) {
	switch s {
	case "":
		return checkEvery, nil
	case "off", "0":
		return 0, nil
	}
	d, err := ParseDuration(s)
	switch {
	case err != nil:
		return 0, errors.New(`is not a duration such as "30s" or "5m", or off`)
	case d < checkEveryLeast:
		return 0, fmt.Errorf("must be at least %s, or off", checkEveryLeast)
	}
	return d, nil
}

// Way is what a check tries.
type Way string

// The ways of a check.
const (
	WayHTTP    Way = "http"
	WayTCP     Way = "tcp"
	WaySSH     Way = "ssh"
	WayAgent   Way = "agent"
	WayCommand Way = "command"
	WayReport  Way = "report"
)

// Way says what is tried.
func (c *Check) Way() Way {
	switch {
	case c.Report:
		return WayReport
	case c.HTTP != "":
		return WayHTTP
	case c.TCP != "":
		return WayTCP
	case c.SSH:
		return WaySSH
	case c.Agent:
		return WayAgent
	default:
		return WayCommand
	}
}

// Inside reports whether the check is made by the guest agent, which containers do
// not have.
func (c *Check) Inside() bool { return c.Agent || c.Command != "" }

// Endpoint is the address of a check over the network. Host is "" for the guest itself.
type Endpoint struct {
	TLS  bool
	Host string
	Port int
	Path string // with the query; of HTTP only
}

// HTTPEndpoint reads the attribute http.
func HTTPEndpoint(s string) (Endpoint, error) {
	var e Endpoint
	full := s
	switch {
	case strings.HasPrefix(s, "/"), strings.HasPrefix(s, ":"):
		full = "http://" + s
	case strings.HasPrefix(s, "http://"), strings.HasPrefix(s, "https://"):
	default:
		return e, errors.New("is not a URL such as http://db.example/health, a port with a path such as :8080/health, or a path")
	}
	u, err := url.Parse(full)
	switch {
	case err != nil:
		return e, errors.New("is not a URL: " + errors.Unwrap(err).Error())
	case u.User != nil:
		return e, errors.New("must not hold a user or a password")
	case u.Fragment != "":
		return e, errors.New("must not have a fragment (#…): it is never sent")
	}
	e = Endpoint{TLS: u.Scheme == "https", Host: elsewhere(u.Hostname()), Port: 80, Path: u.RequestURI()}
	if e.TLS {
		e.Port = 443
	}
	if u.Port() != "" || strings.HasSuffix(u.Host, ":") {
		e.Port, err = portOf(u.Port())
	}
	return e, err
}

// TCPEndpoint reads the attribute tcp.
func TCPEndpoint(s string) (Endpoint, error) {
	host, port := "", s
	if strings.Contains(s, ":") {
		var err error
		if host, port, err = net.SplitHostPort(s); err != nil {
			return Endpoint{}, errors.New("is not a port or address:port; put an IPv6 address into brackets")
		}
	}
	if strings.ContainsAny(host, " \t/@") {
		return Endpoint{}, errors.New("has no address before its port")
	}
	n, err := portOf(port)
	return Endpoint{Host: elsewhere(host), Port: n}, err
}

func portOf(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 {
		return 0, fmt.Errorf("has no port between 1 and 65535: %q", s)
	}
	return n, nil
}

// elsewhere returns a host, "" for one that means the guest: loopback is meant as the
// guest sees it, and must never be that of the machine which tries.
func elsewhere(host string) string {
	ip, err := netip.ParseAddr(host)
	if strings.EqualFold(host, "localhost") || err == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return ""
	}
	return host
}

// OnThisMachine reports whether a host is the machine itself.
func OnThisMachine(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// Status is the HTTP status that the check expects; 0 if it expects none.
func (c *Check) Status() int {
	n, err := strconv.Atoi(c.Expect)
	if err != nil || len(c.Expect) != 3 || n < 100 || n > 599 {
		return 0
	}
	return n
}

// Checks are those of a node: of its spec, then its own. One of the node's stands in
// place of the spec's of the same name.
func (s *Site) Checks(n *Node) []Check {
	var out []Check
	if spec := s.Specs[n.Spec]; spec != nil {
		for _, c := range spec.Checks {
			if !slices.ContainsFunc(n.Checks, func(o Check) bool { return o.Name == c.Name }) {
				out = append(out, c)
			}
		}
	}
	return append(out, n.Checks...)
}

// Gateways returns the gateways that a site, and a spec unless it is nil, name for a node.
func (s *Spec) Gateways(of *Site) (out []netip.Addr) {
	names := []string{of.Gateway}
	if s != nil && s.Network != nil {
		names = append(names, s.Network.Gateway)
	}
	for _, name := range names {
		if ip, err := netip.ParseAddr(name); err == nil {
			out = append(out, ip)
		}
	}
	return out
}
