// Package storage is the API for storages and their volumes, with uploads and downloads.
package storage

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is storages, their volumes, uploads and downloads.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/query-oci-repo-tags":                     apiImageTags,
			"POST /nodes/{node}/storage/{storage}/oci-registry-pull":    apiPullImage,
			"GET /nodes/{node}/storage/{storage}/import-metadata":       apiImportMetadata,
			"GET /nodes/{node}/storage/{storage}/file-restore/list":     apiRestoreFiles,
			"GET /nodes/{node}/storage/{storage}/file-restore/download": apiRestoreFiles,
			"GET /storage":                                            apiStorageConfigs,
			"POST /storage":                                           apiCreateStorage,
			"PUT /storage/{storage}":                                  apiUpdateStorage,
			"DELETE /storage/{storage}":                               apiDeleteStorage,
			"GET /storage/{storage}":                                  apiStorageConfig,
			"GET /nodes/{node}/query-url-metadata":                    apiURLMetadata,
			"GET /nodes/{node}/storage":                               apiNodeStorages,
			"GET /nodes/{node}/storage/{storage}/identity":            apiStorageIdentity,
			"GET /nodes/{node}/storage/{storage}/status":              apiStorageStatus,
			"GET /nodes/{node}/storage/{storage}/content":             apiListContent,
			"POST /nodes/{node}/storage/{storage}/content":            apiAllocate,
			"GET /nodes/{node}/storage/{storage}/content/{volume}":    apiGetVolume,
			"DELETE /nodes/{node}/storage/{storage}/content/{volume}": apiDeleteVolume,
			"POST /nodes/{node}/storage/{storage}/upload":             apiUpload,
			"POST /nodes/{node}/storage/{storage}/download-url":       apiDownload,
			"GET /nodes/{node}/aplinfo":                               apiAppliances,
			"POST /nodes/{node}/aplinfo":                              apiDownloadAppliance,
		},
	}
}
