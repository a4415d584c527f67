package health_test

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

// What a server begins with is cut to what a person reads; a secret that stands at the
// cut is taken out as a whole, and so is one of which only the beginning was read.
func TestNoPartOfASecretStandsAtACut(t *testing.T) {
	const secret = "hunter2-correct-horse-battery-staple"
	tcp := func(c *model.Check) { c.TCP, c.Expect = "25", "ready" }
	for name, c := range map[string]struct {
		begins  string
		secrets []string
		check   func(*model.Check)
	}{
		"ssh, at the cut of a line": {strings.Repeat("x", 190) + secret + "\r\n", []string{secret}, func(c *model.Check) { c.SSH = true }},
		"ssh, at the end of a read": {strings.Repeat("x", 250) + secret + "\r\n", []string{secret, strings.Repeat("x", 100)}, func(c *model.Check) { c.SSH = true }},
		"tcp, at the cut of a line": {strings.Repeat("x", 190) + secret, []string{secret}, tcp},
		"tcp, at the end of what is read": {
			strings.Repeat("x", 4096-10) + secret[:10] + strings.Repeat("x", 500),
			[]string{secret[:10] + strings.Repeat("x", 600), strings.Repeat("x", 4000)},
			tcp,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := listen(t, func(conn net.Conn) {
				for rest := c.begins; rest != ""; {
					n, err := conn.Write([]byte(rest[:min(256, len(rest))]))
					if err != nil {
						return
					}
					rest = rest[n:]
				}
			})
			s := subject(&machine{})
			s.Secrets = c.secrets
			got, ok := saw(t, p, s, c.check)
			require.False(t, ok, got)
			require.NotContains(t, got, "hunt")
			require.Contains(t, got, "xxx")
		})
	}
}
