package integration_test

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// No secret is in what a server answers, logs or shows of its repository, but for those in the spec of
// a node that needs them, for that node.
func TestST17NoSecretLeaves(t *testing.T) {
	t.Parallel()
	p := beginParent(t)
	canaries := regexp.MustCompile(`canary-[a-z-]+|(ca4a71)+`).FindAllString(parentSecrets, -1)
	require.Len(t, canaries, 14)
	ofBeta := []string{"canary-api-beta", "canary-password-beta"}
	needs := map[string][]string{
		"/spec/alpha": {"canary-password-alpha", "canary-key-ops"}, "/spec/beta": ofBeta, "/spec/leaf": ofBeta,
		// For its subtree, which is leaf: what its spec needs, how it shows who it is, and public keys.
		"/config/inner": append([]string{"canary-key-ops", "canary-key-other", siteToken, "canary-token-of-node-leaf"}, ofBeta...),
	}
	holds := func(text string) (out []string) {
		for _, c := range canaries {
			if strings.Contains(text, c) {
				out = append(out, c)
			}
		}
		return out
	}
	nodes := parentNodes
	access := p.access()
	credentials := map[string]string{"nobody": "", "site": siteToken, "reader": string(access.Read), "operator": string(access.Operator), "repository": string(access.Repository)}
	of := map[string]string{} // whose a credential is
	for _, n := range nodes {
		credentials["token of "+n], of["token of "+n] = p.mint(n), n
		credentials["node token of "+n], of["node token of "+n] = "canary-token-of-node-"+n, n
	}

	// Every endpoint with every credential, each from an address of its own: refusals are limited.
	paths := []string{"/", "/health", "/specs", "/status", "/metrics", "/events", "/site.git/info/refs?service=git-upload-pack", "/agent/" + runtime.GOOS + "-" + "none"}
	for _, file := range append(strings.Split(p.git("ls-files"), "\n"), "secrets.yaml", ".git/config") {
		paths = append(paths, "/site.git/raw/HEAD/"+file)
	}
	for _, n := range nodes {
		paths = append(paths, "/spec/"+n, "/wait/"+n, "/report/"+n, "/config/"+n)
	}
	answered := map[string]int{}
	for i, name := range slices.Sorted(maps.Keys(credentials)) {
		c := p.child("127.0.1." + string(rune('1'+i/8)) + string(rune('1'+i%8)))
		for _, path := range paths {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				for _, accept := range []string{"application/json", "application/yaml"} {
					got := c.ask(method, path, credentials[name], http.NoBody, "Accept", accept, "If-None-Match", `"other"`)
					for _, values := range got.header {
						require.Empty(t, holds(strings.Join(values, " ")))
					}
					var want []string
					if node := path[strings.LastIndexByte(path, '/')+1:]; got.status == http.StatusOK && slices.Contains(nodes, node) {
						want = needs[path]
						answered[strings.TrimSuffix(path, node)]++
						if owner := of[name]; owner != "" {
							require.Equal(t, node, owner, name)
						}
					}
					about := fmt.Sprintf("%s %s by %s: %d", method, path, name, got.status)
					require.ElementsMatch(t, want, holds(got.body), about)
				}
			}
		}
	}
	// As JSON and as YAML: specs by each token, by the node tokens but those of beta and leaf, and by the
	// site's token but for alpha; waiting by the same tokens of the node; the rest by tokens of the node.
	require.Equal(t, map[string]int{"/spec/": 2 * (5 + 3 + 4), "/config/": 2 * 2, "/wait/": 2 * (5 + 3)}, answered)
	// The repository has the secrets as sops encrypted them, in all of its history.
	clone := filepath.Join(t.TempDir(), "clone")
	out, err := p.tryGit("-c", "http.extraHeader=Authorization: Bearer "+credentials["repository"], "clone", "-q", "https://"+p.addr+"/site.git", clone)
	require.NoError(t, err, out)
	all, err := p.tryGit("-C", clone, "cat-file", "--batch-all-objects", "--batch")
	require.NoError(t, err)
	require.Contains(t, all, "ENC[AES256_GCM,")
	require.Contains(t, all, "secret.passwords.alpha")
	require.Empty(t, holds(all))

	log := p.stop()
	require.Positive(t, strings.Count(log, " DEBUG request "))
	require.Empty(t, holds(log))
	for name, c := range credentials {
		if c != "" {
			require.Zero(t, strings.Count(log, c), name)
		}
	}
}
