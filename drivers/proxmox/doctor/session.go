package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// session has the results of the first request with the token: whether the host accepts the token,
// its version, and its time.
type session struct {
	*subject
	transport http.RoundTripper // a simulator's; nil where there is a network
	now       func() time.Time
	refused   error // why the driver is missing

	version string         // as PVE says it
	skew    *time.Duration // how far the host's clock is ahead; nil if no answer has a time
}

// signIn asks for the version, the cheapest thing that needs a login: one answer
// shows whether the token is good, which PVE this is, and what time it is there.
func (s *session) signIn(ctx context.Context) {
	const why = "every request sends the token"
	if s.driver == nil {
		s.add(Check{
			Name: "login", Result: Failed, Seen: s.refused.Error(), Why: why, Denied: true,
			Fix: []string{"on the host: pveum user token add homestak@pve gitops --privsep 0", fmt.Sprintf("into secrets.yaml, under api_tokens: %s: \"homestak@pve!gitops=SECRET\"", s.host.Name)},
		})
		return
	}
	status, reason, version, err := s.probe(ctx)
	user := s.client().User()
	switch {
	case err != nil:
		s.fail("login", err.Error(), why, "is this a PVE host? curl -k "+s.host.API+"/api2/json/version")
	case status == http.StatusUnauthorized:
		name, token, _ := strings.Cut(user, "!")
		s.add(Check{
			Name: "login", Result: Failed, Denied: true, Seen: fmt.Sprintf("the host refuses token %s: 401 %s", user, reason),
			Why: "the token does not exist there, its secret is different, or it expired; PVE does not say which",
			Fix: []string{
				"on the host, is it there and not expired? pveum user token list " + name,
				fmt.Sprintf("a new secret: pveum user token remove %s %s && pveum user token add %s %s --privsep 0", name, token, name, token),
				fmt.Sprintf("into secrets.yaml, under api_tokens: %s: \"%s=SECRET\"; grant the token's own privileges again", s.host.Name, user),
			},
		})
	case status != http.StatusOK || version == "":
		s.fail("login", fmt.Sprintf("GET /version: %d %s", status, reason), "this is not an answer of PVE", "is api the URL of a PVE host, without a path? curl -k "+s.host.API+"/api2/json/version")
	default:
		s.version = version
		s.ok("login", "token %s", user)
	}
}

// probe sends GET /version without the driver's handling of answers, and records the clock skew. A
// Date has whole seconds, and the answer to a wrong token is delayed by 3 s: a time between sending
// and receiving is not skew.
func (s *session) probe(ctx context.Context) (status int, reason, version string, err error) {
	inner := s.transport
	if inner == nil {
		if inner, err = api.NewTLSTransport(s.host, 1); err != nil {
			return 0, "", "", err
		}
	}
	req, err := s.client().NewRequest(ctx, http.MethodGet, "/version", http.NoBody)
	if err != nil {
		return 0, "", "", err
	}
	sent := s.now()
	res, err := inner.RoundTrip(req)
	if err != nil {
		return 0, "", "", api.Explain(err)
	}
	defer res.Body.Close()
	received := s.now()
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		switch {
		case date.Before(sent.Add(-time.Second)):
			s.skew = new(date.Sub(sent.Add(-time.Second)))
		case date.After(received):
			s.skew = new(date.Sub(received))
		default:
			s.skew = new(time.Duration)
		}
	}
	var doc struct {
		Data struct{ Version string }
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	if err == nil && res.StatusCode == http.StatusOK {
		err = json.Unmarshal(body, &doc)
	}
	_, reason, _ = strings.Cut(res.Status, " ")
	return res.StatusCode, strings.TrimSpace(reason), doc.Data.Version, err
}

func (s *session) clock(context.Context) {
	const why = "schedules, the age of tokens and certificates, and the order of events depend on both clocks"
	fix := []string{"on the host: timedatectl status && systemctl restart chrony", "here: timedatectl status"}
	if s.skew == nil {
		s.skip("clock", "no answer had a date")
		return
	}
	skew, order := s.skew.Round(time.Second), "ahead of"
	if skew < 0 {
		skew, order = -skew, "behind"
	}
	seen := fmt.Sprintf("the host is %s %s this machine", skew, order)
	switch {
	case skew > skewFailure:
		s.fail("clock", seen, why, fix...)
	case skew > skewWarning:
		s.warn("clock", seen, why, fix...)
	default:
		s.ok("clock", "the host and this machine agree")
	}
}

var versionNumber = regexp.MustCompile(`^(\d+)\.(\d+)`)

func (s *session) release(context.Context) {
	m := versionNumber.FindStringSubmatch(s.version)
	if m == nil {
		s.warn("version", fmt.Sprintf("the host calls itself %q", s.version), "this program is tested with Proxmox VE 8.4 to 9", "pveversion")
		return
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	switch {
	case major < 8 || major == 8 && minor < 4:
		s.fail("version", "Proxmox VE "+s.version+" is older than 8.4", "its API cannot import disk images, and its messages differ from those that this program knows",
			"upgrade the host: https://pve.proxmox.com/wiki/Upgrade_from_7_to_8, and then apt update && apt full-upgrade")
	case major > 9:
		s.warn("version", "Proxmox VE "+s.version+" is newer than what this program is tested with (8.4 to 9)", "its privileges and messages may differ", "see whether there is a newer homestak-gitops")
	default:
		s.ok("version", "Proxmox VE %s", s.version)
	}
}

// major is the major version of PVE; the newest that is known where the host says none.
func (s *session) major() int {
	n, _ := strconv.Atoi(strings.SplitN(s.version, ".", 2)[0])
	return cmp.Or(n, 9)
}
