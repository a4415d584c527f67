package model_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

func TestEndpointsOfHTTP(t *testing.T) {
	for text, want := range map[string]model.Endpoint{
		"http://db.example:8080/health?a=b": {Host: "db.example", Port: 8080, Path: "/health?a=b"},
		"https://db.example":                {TLS: true, Host: "db.example", Port: 443, Path: "/"},
		"http://localhost/":                 {Port: 80, Path: "/"},
		"https://127.0.0.1:8443/x":          {TLS: true, Port: 8443, Path: "/x"},
		"https://:8443":                     {TLS: true, Port: 8443, Path: "/"},
		"http://[::1]:8080/":                {Port: 8080, Path: "/"},
		"http://[2001:db8::1]/":             {Host: "2001:db8::1", Port: 80, Path: "/"},
		":8080/health":                      {Port: 8080, Path: "/health"},
		":8080":                             {Port: 8080, Path: "/"},
		"/health":                           {Port: 80, Path: "/health"},
	} {
		got, err := model.HTTPEndpoint(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"8080", "db.example", "ftp://x/", "http://a:b@x/", "http://x/#top", "http://x:0/", "http://x:/", ":99999/", "http://%zz/"} {
		_, err := model.HTTPEndpoint(text)
		require.Error(t, err, text)
	}
}

func TestEndpointsOfTCP(t *testing.T) {
	for text, want := range map[string]model.Endpoint{
		"22":               {Port: 22},
		":22":              {Port: 22},
		"localhost:22":     {Port: 22},
		"[::]:22":          {Port: 22},
		"192.0.2.7:5432":   {Host: "192.0.2.7", Port: 5432},
		"[2001:db8::1]:22": {Host: "2001:db8::1", Port: 22},
	} {
		got, err := model.TCPEndpoint(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"ssh", "0", "65536", "a b:22", "db", "::1:22", "db:", "a/b:22"} {
		_, err := model.TCPEndpoint(text)
		require.Error(t, err, text)
	}
}

func TestExpectedStatus(t *testing.T) {
	for text, want := range map[string]int{"204": 204, "": 0, "ok": 0, "2040": 0, "999": 0, "-20": 0} {
		require.Equal(t, want, (&model.Check{Expect: text}).Status(), text)
	}
}
