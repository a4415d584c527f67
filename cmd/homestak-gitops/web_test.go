package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/web"
)

// Browsers omit port 80 from the name of the host, and no other port.
func TestHostsOfThePage(t *testing.T) {
	for at, hosts := range map[string][]string{
		"127.0.0.1:80":   {"127.0.0.1", "127.0.0.1:80", "localhost", "localhost:80"},
		"127.0.0.1:8080": {"127.0.0.1:8080", "localhost:8080"},
	} {
		h := pageOf(nil, web.NewToken(false), at)
		for _, host := range []string{"127.0.0.1", "localhost", "127.0.0.1:80", "localhost:80", "127.0.0.1:8080", "localhost:8080", "evil.example"} {
			r, w := httptest.NewRequest(http.MethodGet, "/sign-in", nil), httptest.NewRecorder()
			r.Host = host
			h.ServeHTTP(w, r)
			known := false
			for _, name := range hosts {
				known = known || name == host
			}
			require.Equal(t, !known, w.Code == http.StatusMisdirectedRequest, "%s asked as %s: %d", at, host, w.Code)
		}
	}
}

// An agent in a shell that inherited the environment of a unit is not started again by systemd.
func TestManagedBySystemd(t *testing.T) {
	for _, c := range []struct {
		socket, pid string
		want        bool
	}{{"", "", false}, {"/run/systemd/notify", "", true}, {"/run/systemd/notify", strconv.Itoa(os.Getpid()), true}, {"/run/systemd/notify", "1", false}} {
		require.Equal(t, c.want, managed(func(name string) string {
			return map[string]string{"NOTIFY_SOCKET": c.socket, "SYSTEMD_EXEC_PID": c.pid}[name]
		}))
	}
}
